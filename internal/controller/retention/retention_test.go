// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

var limits = Limits{TTL: 240 * time.Hour, PerNode: 3, MinimumAge: 30 * time.Minute, MaxDeletions: 100}

// oldDiagnosis is a Diagnosis of a node that ended so long ago.
func oldDiagnosis(node, name string, age time.Duration) v1.Diagnosis {
	d := v1.Diagnosis{}
	d.Namespace, d.Name, d.UID = "team", name, types.UID(name)
	d.CreationTimestamp = metav1.NewTime(now.Add(-age))
	d.Spec.NodeName = node
	d.Status.Phase = v1.DiagnosisSucceeded
	end := metav1.NewTime(now.Add(-age))
	d.Status.CompletionTime = &end
	d.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue}}
	return d
}

func changedBy(d v1.Diagnosis, change func(*v1.Diagnosis)) v1.Diagnosis {
	change(&d)
	return d
}

// makeRecord makes a Diagnosis the record of a repair, whose status is not stored yet.
func makeRecord(d *v1.Diagnosis) {
	d.Spec.Mode, d.Status = v1.ModeRecord, v1.DiagnosisStatus{}
}

// planOf is a plan that run made, each on a node of its own, or the Diagnosis that has carried it out.
func planOf(name string, age time.Duration, hash string, outcome v1.Outcome) v1.Diagnosis {
	d := oldDiagnosis(name, name, age)
	d.Status.Outcome, d.Spec.PlanHash = outcome, hash
	if outcome == v1.OutcomePlanned {
		d.Spec.PlanHash, d.Spec.Mode, d.Labels = "", v1.ModePlan, map[string]string{v1.LabelPlan: ""}
		d.Status.Plan = &v1.Plan{Hash: hash}
	}
	return d
}

func timeAgo(d time.Duration) *metav1.Time {
	at := metav1.NewTime(now.Add(-d))
	return &at
}

func TestChooseDeletions(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, tc := range map[string]struct {
		limits Limits
		all    []v1.Diagnosis
		want   []string // name and cause, in order
	}{
		"nothing": {limits, nil, nil},
		"too old, oldest first": {
			limits,
			[]v1.Diagnosis{oldDiagnosis("a", "11d", 11*day), oldDiagnosis("a", "9d", 9*day), oldDiagnosis("b", "12d", 12*day)},
			[]string{"12d age", "11d age"},
		},
		"exactly as old as allowed": {limits, []v1.Diagnosis{oldDiagnosis("a", "10d", 10*day)}, nil},
		"too many of one node": {
			limits,
			[]v1.Diagnosis{oldDiagnosis("a", "1h", time.Hour), oldDiagnosis("a", "5h", 5*time.Hour), oldDiagnosis("a", "3h", 3*time.Hour), oldDiagnosis("a", "2h", 2*time.Hour), oldDiagnosis("a", "4h", 4*time.Hour), oldDiagnosis("b", "6h", 6*time.Hour)},
			[]string{"5h count", "4h count"},
		},
		"too many, but too young": {
			limits,
			[]v1.Diagnosis{oldDiagnosis("a", "1m", time.Minute), oldDiagnosis("a", "2m", 2*time.Minute), oldDiagnosis("a", "3m", 3*time.Minute), oldDiagnosis("a", "30m", 30*time.Minute), oldDiagnosis("a", "31m", 31*time.Minute)},
			[]string{"31m count"},
		},
		"age counts before number": {
			limits,
			[]v1.Diagnosis{oldDiagnosis("a", "11d", 11*day), oldDiagnosis("a", "1h", time.Hour), oldDiagnosis("a", "2h", 2*time.Hour), oldDiagnosis("a", "3h", 3*time.Hour)},
			[]string{"11d age"},
		},
		"failed ones too": {
			limits,
			[]v1.Diagnosis{changedBy(oldDiagnosis("", "f", 11*day), func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisFailed })},
			[]string{"f age"},
		},
		"never what has not ended": {
			Limits{TTL: time.Second, PerNode: 1, MaxDeletions: 100},
			[]v1.Diagnosis{
				changedBy(oldDiagnosis("a", "running", 99*day), func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisRunning }),
				changedBy(oldDiagnosis("a", "unknown", 99*day), func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisUnknown }),
				changedBy(oldDiagnosis("a", "pending", 99*day), func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisPending }),
				changedBy(oldDiagnosis("a", "new", 99*day), func(d *v1.Diagnosis) { d.Status.Phase = "" }),
			},
			nil,
		},
		"records, by node, with or without a status": {
			Limits{PerNode: 1, MaxDeletions: 100},
			[]v1.Diagnosis{
				changedBy(oldDiagnosis("a", "3h", 3*time.Hour), makeRecord), changedBy(oldDiagnosis("a", "2h", 2*time.Hour), makeRecord), changedBy(oldDiagnosis("b", "4h", 4*time.Hour), makeRecord),
			},
			[]string{"3h count"},
		},
		"running ones do not push others out": {
			limits,
			[]v1.Diagnosis{
				oldDiagnosis("a", "1h", time.Hour), oldDiagnosis("a", "2h", 2*time.Hour), oldDiagnosis("a", "3h", 3*time.Hour),
				changedBy(oldDiagnosis("a", "running", time.Hour), func(d *v1.Diagnosis) { d.Status.Phase = v1.DiagnosisRunning }),
			},
			nil,
		},
		"no times at all: the creation counts": {
			limits,
			[]v1.Diagnosis{
				changedBy(oldDiagnosis("a", "fresh", time.Hour), func(d *v1.Diagnosis) { d.Status.CompletionTime, d.Status.StartTime = nil, &metav1.Time{} }),
				changedBy(oldDiagnosis("a", "stale", 11*day), func(d *v1.Diagnosis) { d.Status.CompletionTime = &metav1.Time{} }),
			},
			[]string{"stale age"},
		},
		"only a start": {
			limits,
			[]v1.Diagnosis{changedBy(oldDiagnosis("a", "x", time.Hour), func(d *v1.Diagnosis) { d.Status.CompletionTime, d.Status.StartTime = nil, timeAgo(11*day) })},
			[]string{"x age"},
		},
		"from the future": {limits, []v1.Diagnosis{oldDiagnosis("a", "x", -day)}, nil},
		"plans that were carried out": {
			limits,
			[]v1.Diagnosis{
				planOf("2h", 2*time.Hour, "h", v1.OutcomePlanned), planOf("done", 61*time.Minute, "h", v1.OutcomeHealed), planOf("after", 60*time.Minute, "h", v1.OutcomePlanned),
				planOf("other", 3*time.Hour, "i", v1.OutcomePlanned), planOf("failed", 2*time.Hour, "i", v1.OutcomeFaultFound),
				planOf("young", 3*time.Hour, "k", v1.OutcomePlanned), planOf("now", time.Hour, "k", v1.OutcomeHealed),
				changedBy(planOf("user", 2*time.Hour, "h", v1.OutcomePlanned), func(d *v1.Diagnosis) { d.Labels = nil }),
				changedBy(planOf("elsewhere", 2*time.Hour, "h", v1.OutcomePlanned), func(d *v1.Diagnosis) { d.Namespace = "others" }),
			},
			[]string{"2h age"},
		},
		"going already": {
			limits,
			[]v1.Diagnosis{changedBy(oldDiagnosis("a", "x", 11*day), func(d *v1.Diagnosis) { d.DeletionTimestamp = timeAgo(0) })},
			nil,
		},
		"no limits": {Limits{MaxDeletions: 100}, []v1.Diagnosis{oldDiagnosis("a", "x", 9999*day), oldDiagnosis("a", "y", day)}, nil},
		"a pass is bounded": {
			Limits{TTL: time.Hour, MaxDeletions: 2},
			[]v1.Diagnosis{oldDiagnosis("a", "2d", 2*day), oldDiagnosis("a", "4d", 4*day), oldDiagnosis("a", "3d", 3*day)},
			[]string{"4d age", "3d age"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, c := range tc.limits.chooseDeletions(now, tc.all) {
				got = append(got, c.diagnosis.Name+" "+c.cause)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("chosen (-want +got):\n%s", diff)
			}
		})
	}
}

// A tenant who names the node of others, in Diagnoses that are refused or that run, pushes out no record but his own.
func TestRecordsOfOthersStay(t *testing.T) {
	t.Parallel()
	for name, accepted := range map[string]metav1.ConditionStatus{
		"refused": metav1.ConditionFalse, "never looked at": metav1.ConditionUnknown, "taken": metav1.ConditionTrue,
	} {
		var all []v1.Diagnosis
		for i := range 3 {
			all = append(all, changedBy(oldDiagnosis("a", fmt.Sprint("sre", i), 9*time.Hour), func(d *v1.Diagnosis) { d.Namespace = "sre" }))
		}
		for i := range 60 {
			all = append(all, changedBy(oldDiagnosis("a", fmt.Sprint("tenant", i), time.Hour), func(d *v1.Diagnosis) {
				d.Namespace = "tenant"
				d.Status.Conditions[0].Status = accepted
			}))
		}
		deleted := map[string]int{}
		for _, c := range limits.chooseDeletions(now, all) {
			deleted[c.diagnosis.Namespace]++
		}
		if diff := cmp.Diff(map[string]int{"tenant": 57}, deleted); diff != "" {
			t.Errorf("%s: deleted by namespace (-want +got):\n%s", name, diff)
		}
	}
}

// Refused Diagnoses count against their namespace alone, whatever nodes they name and how many.
func TestRefusedOnesCountTogether(t *testing.T) {
	t.Parallel()
	all := []v1.Diagnosis{oldDiagnosis("node1", "mine", 9*time.Hour)}
	for i := range 10 {
		all = append(all, changedBy(oldDiagnosis(fmt.Sprint("node", i), fmt.Sprint("refused", i), time.Duration(i+1)*time.Hour), func(d *v1.Diagnosis) {
			d.Status.Conditions = nil
		}))
	}
	var got []string
	for _, c := range limits.chooseDeletions(now, all) {
		got = append(got, c.diagnosis.Name)
	}
	want := []string{"refused9", "refused8", "refused7", "refused6", "refused5", "refused4", "refused3"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

// TestRepairsOfOneTenantKeepTheRecordsOfOthers: all records and all that policies and Triggers make is in kubediag's namespace.
func TestRepairsOfOneTenantKeepTheRecordsOfOthers(t *testing.T) {
	t.Parallel()
	made := func(name, pods string, age time.Duration, change func(*v1.Diagnosis)) v1.Diagnosis {
		return changedBy(oldDiagnosis("a", name, age), func(d *v1.Diagnosis) {
			d.Namespace = "kubediag"
			d.Spec.PodReference = &v1.PodReference{Namespace: pods, Name: "pod"}
			if change != nil {
				change(d)
			}
		})
	}
	refused := func(d *v1.Diagnosis) { d.Status.Conditions = nil }
	counts := func(d *v1.Diagnosis) { // one record counts many repairs, and names no pod
		namespace := d.Spec.PodReference.Namespace
		makeRecord(d)
		d.Spec.PodReference = nil
		d.Status.Faults = []v1.Fault{{Code: "StaleSubPath", Pod: &v1.FaultPod{Namespace: namespace, Name: "last"}}}
	}
	all := []v1.Diagnosis{
		made("eviction", "shop", 9*time.Hour, nil), made("record", "shop", 8*time.Hour, makeRecord), made("counts", "shop", 7*time.Hour, counts),
		made("refused", "shop", 9*time.Hour, refused),
	}
	for i := range 60 {
		for name, change := range map[string]func(*v1.Diagnosis){"record": makeRecord, "counts": counts, "taken": nil, "refused": refused} {
			all = append(all, made(fmt.Sprint("tenant-", name, i), "tenant", time.Hour, change))
		}
	}
	limits := limits
	limits.Namespace, limits.MaxDeletions = "kubediag", 1000
	for _, c := range limits.chooseDeletions(now, all) {
		if c.diagnosis.PodNamespace() == "shop" {
			t.Errorf("%s of shop is deleted: %s", c.diagnosis.Name, c.cause)
		}
	}
	// In their own namespaces, tenants choose the pod of a Diagnosis that is refused: it makes no group.
	for i := range all {
		all[i].Namespace = "tenant"
	}
	deleted := 0
	for _, c := range limits.chooseDeletions(now, all) {
		if c.diagnosis.Status.Conditions == nil && c.diagnosis.Spec.Mode != v1.ModeRecord {
			deleted++
		}
	}
	if deleted != 61-limits.PerNode {
		t.Errorf("%d of 61 refused ones are deleted", deleted)
	}
}

func newKeeper(t *testing.T, funcs interceptor.Funcs, all ...v1.Diagnosis) *Keeper {
	t.Helper()
	b := kubeclienttest.Builder(t).WithInterceptorFuncs(funcs)
	for i := range all {
		b = b.WithObjects(&all[i])
	}
	return &Keeper{Client: b.Build(), Clock: testclock.NewFakeClock(now), Limits: limits, Every: time.Minute}
}

func (k *Keeper) diagnosesLeft(t *testing.T) int {
	t.Helper()
	var list v1.DiagnosisList
	if err := k.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A pass ends with the first error and counts it, and deletes nothing that has changed since it was read.
func TestPassMeetsErrors(t *testing.T) {
	t.Parallel()
	refused, calls := errors.New("connection refused"), 0
	k := newKeeper(t, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, opts ...client.DeleteOption) error {
			calls++
			o := (&client.DeleteOptions{}).ApplyOptions(opts)
			if o.Preconditions == nil || o.Preconditions.UID == nil || o.Preconditions.ResourceVersion == nil {
				t.Error("what has changed since would be deleted")
			}
			return refused
		},
	}, oldDiagnosis("a", "x", 999*time.Hour), oldDiagnosis("a", "y", 999*time.Hour))
	before := testutil.ToFloat64(failuresCounter)
	if err := k.deleteOverLimits(t.Context()); !errors.Is(err, refused) || calls != 1 {
		t.Errorf("error = %v after %d calls, want %v after one", err, calls, refused)
	}
	if testutil.ToFloat64(failuresCounter) == before {
		t.Error("the failure was not counted")
	}
}

func TestPassDeletes(t *testing.T) {
	t.Parallel()
	var all []v1.Diagnosis
	for i := range 10 {
		all = append(all, oldDiagnosis("a", fmt.Sprint(i), time.Hour))
	}
	k := newKeeper(t, interceptor.Funcs{}, all...)
	if err := k.deleteOverLimits(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := k.diagnosesLeft(t); got != limits.PerNode {
		t.Errorf("%d are left, want %d", got, limits.PerNode)
	}
}
