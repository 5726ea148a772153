// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestPolicyAlone applies a policy and nothing else on a node with the bug. Without it faults are reported. With it no start of a
// container fails. A pause stops repairs, and its end lets them go on.
func TestPolicyAlone(t *testing.T) {
	t.Parallel()
	const pause = "../../config/samples/recovery-pause.yaml"
	s := start(t, withTheBug).deploySubPaths(t)
	s.update(t)
	s.Wait(t, "every bind to be stale", func(context.Context) bool { return s.allStale(t) })
	s.awaitDecision(t, "no RecoveryPolicy selects the fault")
	s.healed(t, func() { s.Kubectl(t, policyOfTest, "apply", "-f", "-") })
	s.neverFails(t, 3)
	s.Kubectl(t, "", "apply", "-f", pause)
	s.Kubectl(t, "", "wait", "--for=condition=Ready", "--timeout=1m", "recoverypolicy/pause")
	s.update(t)
	s.awaitDecision(t, "policy pause is paused")
	if !s.allStale(t) {
		t.Error("binds were repaired during the pause")
	}
	s.Kubectl(t, "", "delete", "-f", pause)
	s.awaitReplaced(t)
}

// TestBreakerOfAPolicy breaks every bind of a pod. The budget allows one repair, and one more in ten seconds, so the breaker opens.
// After a person has closed it, the pace is the same.
func TestBreakerOfAPolicy(t *testing.T) {
	t.Parallel()
	s := start(t, withTheBug).deploySubPaths(t)
	s.update(t)
	s.Wait(t, "every bind to be stale", func(context.Context) bool { return s.allStale(t) })
	s.Kubectl(t, policyOfTest+`
  budgets:
    node: {atOnce: 1, perHour: 360}
  breaker:
    maximumNodesPercent: 50
    minimumFaultyNodes: 1
`, "apply", "-f", "-")
	p := &v1.RecoveryPolicy{}
	s.Wait(t, "the breaker to open", func(ctx context.Context) bool {
		must(t, s.Get(ctx, client.ObjectKey{Name: "stale-subpaths"}, p))
		return p.Status.OpenBreakers == 1
	})
	left, opened := s.stale(t), time.Now()
	if left < 2 || left == len(kinds) {
		t.Fatalf("%d binds are stale, budgets allow a few repairs: %+v", left, p.Status)
	}
	for time.Since(opened) < 15*time.Second {
		if now := s.stale(t); now < left-1 { // one may have been underway
			t.Fatalf("%d binds are stale, %d when the breaker opened", now, left)
		}
		time.Sleep(200 * time.Millisecond)
	}
	left = s.stale(t)
	reset := fmt.Sprintf(`{"spec":{"breaker":{"resetTime":%q}}}`, time.Now().UTC().Format(time.RFC3339))
	s.Kubectl(t, "", "patch", "recoverypolicy", "stale-subpaths", "--type=merge", "-p", reset)
	closed := time.Now()
	s.awaitReplaced(t)
	if took, least := time.Since(closed), time.Duration(left-1)*10*time.Second-5*time.Second; took < least {
		t.Errorf("%d binds were replaced in %s, the budget allows it in %s", left, took, least)
	}
}

// stale counts the stale binds.
func (s *subPaths) stale(t *testing.T) (n int) {
	t.Helper()
	for _, m := range s.binds(t) {
		if m.Deleted() {
			n++
		}
	}
	return n
}

// policyOfTest is as that of config/samples/recoverypolicies/stale-subpaths.yaml, without budgets.
const policyOfTest = `
apiVersion: diagnosis.kubediag.org/v1
kind: RecoveryPolicy
metadata:
  name: stale-subpaths
spec:
  mode: Automatic
  faultCodes: [StaleSubPath]
`

// awaitDecision waits until each stale bind has a MountFault that says why it is not repaired.
func (s *subPaths) awaitDecision(t *testing.T, why string) {
	t.Helper()
	s.Wait(t, "every MountFault to say "+why, func(ctx context.Context) bool {
		var all v1.MountFaultList
		must(t, s.List(ctx, &all, client.InNamespace("default")))
		said := slices.DeleteFunc(all.Items, func(f v1.MountFault) bool {
			return f.Status.Code != "StaleSubPath" || f.Status.Recovery == nil || f.Status.Recovery.Message != why
		})
		return len(said) == len(kinds)
	})
}
