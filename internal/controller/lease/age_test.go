// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// readAges reads the ages as Prometheus does.
func readAges(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must(t, err)
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() == leaseAge.Name {
			for _, m := range f.GetMetric() {
				found[labelOf(m)] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func labelOf(m *dto.Metric) string { return m.GetLabel()[0].GetValue() }

// An age is that of the last change which the manager saw: the clock of a node that is wrong makes no agent old. A node
// that is gone has no age.
func TestAges(t *testing.T) {
	start := time.Date(2026, 11, 23, 6, 0, 0, 0, time.UTC)
	clock := testclock.NewFakeClock(start)
	leaseOf := func(node string, at time.Time) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kubediag", Name: v1.AgentLeaseName(node), Labels: map[string]string{v1.LabelAgent: node}}}
		l.Spec.HolderIdentity, l.Spec.RenewTime = &node, &metav1.MicroTime{Time: at}
		return l
	}
	live, dead := leaseOf("live", start.Add(-time.Hour)), leaseOf("dead", start.Add(time.Hour))
	other := leaseOf("other", start)
	other.Labels = nil                            // the manager's own
	long := strings.Repeat("\U0001F98A", 300_000) // of an agent that was taken over: no bound of the API server holds it
	forged, named := leaseOf("forged", start), leaseOf("named", start)
	forged.Spec.HolderIdentity, named.Spec.HolderIdentity = &long, new("live")
	unbounded := leaseOf(long, start)
	unbounded.Labels[v1.LabelAgent] = v1.NodeLabelValue(long)
	c := kubeclienttest.Builder(t).WithObjects(live, dead, other, forged, named, unbounded).Build()
	a := &Ages{Reader: c, Clock: clock, Namespace: "kubediag", Every: AgeInterval}
	step := func(name string, want map[string]float64) {
		t.Helper()
		must(t, a.measureAll(t.Context()))
		if diff := cmp.Diff(want, readAges(t)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		clock.Step(time.Minute)
	}
	step("at first", map[string]float64{"live": 0, "dead": 0})
	live.Spec.RenewTime = &metav1.MicroTime{Time: start.Add(-time.Minute)}
	must(t, c.Update(t.Context(), live))
	step("one was renewed", map[string]float64{"live": 0, "dead": 60})
	step("none was", map[string]float64{"live": 60, "dead": 120})
	must(t, c.Delete(t.Context(), dead))
	step("one is gone", map[string]float64{"live": 120})
	if !a.NeedLeaderElection() {
		t.Error("every manager exposes the ages")
	}
}

// TestAgesAreBounded holds that Leases which an agent makes for names of its own take no place of a node that was there before.
func TestAgesAreBounded(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	found := map[string]leaseRenewal{"z": {made: noon}, "y": {made: noon.Add(time.Hour)}}
	for i := range 100 {
		found[fmt.Sprint("forged-", i)] = leaseRenewal{made: noon.Add(2 * time.Hour)}
	}
	dropNewest(found, 10)
	_, first := found["z"]
	_, second := found["y"]
	if len(found) != 10 || !first || !second {
		t.Errorf("%d are left, of the nodes %v and %v", len(found), first, second)
	}
	if dropNewest(found, 10); len(found) != 10 {
		t.Errorf("%d are left", len(found))
	}
}

var must = kerneltest.Must
