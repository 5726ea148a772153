// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/fakenode"
)

// checkShares fails if attackers use up the share of a victim while the attacks last: the failed repairs of the tenant, or
// those that an agent forges, open no breaker for a victim, and the records of the tenant's repairs displace no record of a victim. The tenant has more
// broken volumes than a node has MountFaults: each healed victim of the Trigger had one nevertheless.
func (t *town) checkShares(b *testing.B) {
	b.Helper()
	policy := &v1.RecoveryPolicy{}
	must(b, t.Get(b.Context(), client.ObjectKey{Name: "shared"}, policy))
	open := map[string]int{}
	for _, breaker := range policy.Status.Breakers {
		if breaker.State == v1.BreakerOpen {
			open[breaker.Namespace]++
		}
	}
	var diagnoses v1.DiagnosisList
	must(b, t.List(b.Context(), &diagnoses, client.InNamespace("default")))
	records, triggered := map[string]int{}, map[string]int{}
	for _, d := range diagnoses.Items {
		switch p := d.Spec.PodReference; {
		case p == nil:
		case d.Spec.Mode == v1.ModeRecord:
			records[p.Namespace]++
		default:
			triggered[p.Namespace]++
		}
	}
	var faults v1.MountFaultList
	must(b, t.List(b.Context(), &faults))
	listed, unlisted := 0, int32(0)
	for _, f := range faults.Items {
		if f.Status.Node == fakenode.NodeName {
			listed, unlisted = listed+1, unlisted+f.Status.Unlisted
		}
	}
	b.Logf("open breakers %v, records %v, Diagnoses of Triggers %v, %d MountFaults of the node and %d faults without one", open, records, triggered, listed, unlisted)
	for _, victim := range append(slices.Clone(victimSpaces), "") { // none: of all namespaces
		if open[victim] > 0 {
			b.Errorf("the breaker is open for namespace %q", victim)
		}
	}
	if records["shared"] == 0 || triggered["asked"] == 0 {
		b.Error("of the repairs of a victim there is no trace any more")
	}
}
