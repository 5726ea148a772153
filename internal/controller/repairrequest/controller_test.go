// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repairrequest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient/kubeclienttest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/share"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// faultOf is a fault of the pod web whose repair two policies want approved.
func faultOf(name string, change func(*v1.MountFaultStatus)) *v1.MountFault {
	f := &v1.MountFault{}
	f.Namespace, f.Name = "team", name
	f.Status = v1.MountFaultStatus{
		Code: "StaleSubPath", Node: "n1", Heal: v1.HealSafe, Pod: &v1.FaultPod{Namespace: "team", Name: "web", UID: "pod-uid"},
		Recovery: &v1.FaultRecovery{Mode: v1.RecoveryApprove, Policies: []string{"a", "b"}}, Since: metav1.NewTime(start.Add(-Delay)),
	}
	if change != nil {
		change(&f.Status)
	}
	return f
}

// cluster is an API server with a reconciler.
type cluster struct {
	client.Client
	r     *Reconciler
	clock *testclock.FakeClock
	fail  error // of the next creations
}

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	c := &cluster{clock: testclock.NewFakeClock(start)}
	c.Client = kubeclienttest.Builder(t).WithObjects(objects...).WithStatusSubresource(&v1.Diagnosis{}).
		WithIndex(&v1.Diagnosis{}, unfinishedIndex, unfinished).WithIndex(&v1.Diagnosis{}, evictionIndex, evictions).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, next client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if c.fail != nil {
					return c.fail
				}
				o.SetCreationTimestamp(metav1.NewTime(c.clock.Now()))
				return next.Create(ctx, o, opts...)
			},
		}).Build()
	pace := share.Pace{AtOnce: 2, PerHour: 3600}
	c.r = &Reconciler{Client: c.Client, Clock: c.clock, Namespace: "kubediag", Limiter: share.NewBucket(pace, pace)}
	return c
}

// visit reconciles a fault, and returns how many Diagnoses there are then.
func (c *cluster) visit(t *testing.T, name string) (result reconcile.Result, made []v1.Diagnosis) {
	t.Helper()
	result, err := c.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team", Name: name}})
	var list v1.DiagnosisList
	if errList := c.List(t.Context(), &list); err != nil || errList != nil {
		t.Fatal(err, errList)
	}
	return result, list.Items
}

// TestAsks: one Diagnosis for the faults of a pod, that waits for an approval; the next one after it has ended, and not at once.
func TestAsks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, faultOf("one", nil), faultOf("two", nil))
	result, made := c.visit(t, "one")
	if len(made) != 1 || result.RequeueAfter != minInterval {
		t.Fatalf("%+v, %+v", result, made)
	}
	want := v1.DiagnosisSpec{
		OperationSet: "auto", Mode: v1.ModeApprove, NodeName: "n1", PodReference: &v1.PodReference{Namespace: "team", Name: "web"},
	}
	d := &made[0]
	if diff := cmp.Diff(want, d.Spec); diff != "" || d.Namespace != "kubediag" || d.Labels[v1.LabelOrigin] != v1.OriginPolicy ||
		d.Annotations[v1.AnnotationPolicies] != "a,b" {
		t.Errorf("%+v (-want +got):\n%s", d.ObjectMeta, diff)
	}
	if _, made := c.visit(t, "two"); len(made) != 1 {
		t.Errorf("%d Diagnoses for one pod", len(made))
	}
	c.clock.Step(minInterval)
	if _, made := c.visit(t, "one"); len(made) != 1 {
		t.Errorf("%d Diagnoses while one waits", len(made))
	}
	d.Status.Phase = v1.DiagnosisFailed
	must(t, c.Status().Update(t.Context(), d))
	for i, want := range []int{2, 2} {
		_, made = c.visit(t, "one")
		if len(made) != want {
			t.Errorf("visit %d: %d Diagnoses", i, len(made))
		}
		for j := range made {
			made[j].Status.Phase = v1.DiagnosisFailed
			must(t, c.Status().Update(t.Context(), &made[j]))
		}
	}
}

// TestAsksForFaultsThatLast: the Diagnosis is made when the other faults of the pod had time to appear.
func TestAsksForFaultsThatLast(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		age, wait time.Duration
		made      int
	}{
		"new":           {0, Delay, 0},
		"a moment old":  {3 * time.Second, Delay - 3*time.Second, 0},
		"old enough":    {Delay, minInterval, 1},
		"a clock ahead": {-time.Hour, minInterval, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, faultOf("one", func(s *v1.MountFaultStatus) { s.Since = metav1.NewTime(start.Add(-tc.age)) }))
			if result, made := c.visit(t, "one"); result.RequeueAfter != tc.wait || len(made) != tc.made {
				t.Errorf("%+v, %d Diagnoses", result, len(made))
			}
		})
	}
}

// TestAsksForNothingElse: only for what a person can allow, and only if no other Diagnosis works on it.
func TestAsksForNothingElse(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1.MountFaultStatus){
		"automatic":       func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryAutomatic },
		"observe":         func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryObserve },
		"no policy":       func(s *v1.MountFaultStatus) { s.Recovery = nil },
		"no repair known": func(s *v1.MountFaultStatus) { s.Heal = v1.HealDriver },
		"of the node":     func(s *v1.MountFaultStatus) { s.Pod = nil },
		"in work":         func(s *v1.MountFaultStatus) { s.Diagnosis = "kubediag/d" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, faultOf("one", change))
			if _, made := c.visit(t, "one"); len(made) != 0 {
				t.Errorf("%+v", made)
			}
		})
	}
	c := newCluster(t)
	if result, made := c.visit(t, "gone"); len(made) != 0 || result.RequeueAfter != 0 {
		t.Errorf("%+v, %+v", result, made)
	}
}

// TestTenantsBlockNoPolicy: a Diagnosis of another namespace about the same pod, such as one that waits for its approval for a week, keeps
// no policy from the pod.
func TestTenantsBlockNoPolicy(t *testing.T) {
	t.Parallel()
	waits := &v1.Diagnosis{}
	waits.Namespace, waits.Name = "team", "waits"
	waits.Spec = v1.DiagnosisSpec{Mode: v1.ModeApprove, PodReference: &v1.PodReference{Namespace: "team", Name: "web"}}
	waits.Status.Phase, waits.Status.Outcome = v1.DiagnosisRunning, v1.OutcomeAwaitingApproval
	of := func(s *v1.MountFaultStatus) { s.Diagnosis = "team/waits" }
	c := newCluster(t, waits, faultOf("one", of), lasting("two", of))
	if _, all := c.visit(t, "one"); len(all) != 2 { // with the tenant's
		t.Fatalf("no Diagnosis of the policy: %+v", all)
	}
	ours := &v1.DiagnosisList{}
	if err := c.List(t.Context(), ours, client.InNamespace("kubediag")); err != nil || len(ours.Items) != 1 {
		t.Fatalf("%+v, %v", ours.Items, err)
	}
	ours.Items[0].Status.Phase = v1.DiagnosisFailed
	must(t, c.Status().Update(t.Context(), &ours.Items[0]))
	c.clock.Step(minInterval)
	if _, all := c.visit(t, "two"); len(all) != 3 {
		t.Errorf("no eviction by the policy: %+v", all)
	}
}

// TestPlans: a policy with mode Plan has a fault planned once, and nothing more.
func TestPlans(t *testing.T) {
	t.Parallel()
	c := newCluster(t, faultOf("one", func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryPlan }))
	for range 3 {
		_, made := c.visit(t, "one")
		if len(made) != 1 || made[0].Spec.Mode != v1.ModePlan || made[0].Labels[v1.LabelOrigin] != v1.OriginPolicy {
			t.Fatalf("%+v", made)
		}
		made[0].Status.Phase = v1.DiagnosisSucceeded
		must(t, c.Status().Update(t.Context(), &made[0]))
		c.clock.Step(2 * minInterval)
	}
}

// TestPace: a storm of faults becomes no storm of Diagnoses.
func TestPace(t *testing.T) {
	t.Parallel()
	var faults []client.Object
	for _, name := range []string{"a", "b", "c"} {
		faults = append(faults, faultOf(name, func(s *v1.MountFaultStatus) { s.Pod.Name = name }))
	}
	c := newCluster(t, faults...)
	c.visit(t, "a")
	c.visit(t, "b")
	result, made := c.visit(t, "c")
	if len(made) != 2 || result.RequeueAfter != time.Second {
		t.Errorf("%+v, %d Diagnoses", result, len(made))
	}
	c.clock.Step(time.Second)
	if _, made := c.visit(t, "c"); len(made) != 3 {
		t.Errorf("%d Diagnoses", len(made))
	}
}

// TestOneTenantTakesNoOthersTurn: thousands of faults of a tenant ask all the time. A fault of another namespace has its Diagnosis at once.
func TestOneTenantTakesNoOthersTurn(t *testing.T) {
	t.Parallel()
	r, now := &Reconciler{Limiter: NewLimiter()}, start
	of := func(namespace string, i int) *v1.Diagnosis {
		return &v1.Diagnosis{Spec: v1.DiagnosisSpec{PodReference: &v1.PodReference{Namespace: namespace, Name: fmt.Sprint("pod-", i)}}}
	}
	made, late := 0, 0
	for second := range 60 {
		for i := range 500 {
			if r.turn(of("tenant", i), now) == 0 {
				made++
			}
		}
		for i := range 3 {
			if second == 30 && r.turn(of("shop", i), now) > 0 {
				late++
			}
		}
		now = now.Add(time.Second)
	}
	if late != 0 || made < 650 || made > diagnosesAtOnce+60*diagnosesPerSecond {
		t.Errorf("%d of shop wait, %d of the tenant are made", late, made)
	}
	if wait := r.turn(of("tenant", 0), now); wait > 0 && wait < minWait {
		t.Errorf("asked again after %s", wait)
	}
}

// TestRefusedCreation is tried again later, and another error at once.
func TestRefusedCreation(t *testing.T) {
	t.Parallel()
	c := newCluster(t, faultOf("one", nil))
	c.fail = apierrors.NewForbidden(schema.GroupResource{Resource: "diagnoses"}, "d", errors.New("the namespace is being terminated"))
	if result, made := c.visit(t, "one"); result.RequeueAfter != minInterval || len(made) != 0 {
		t.Errorf("%+v, %d Diagnoses", result, len(made))
	}
	c.fail = errors.New("no route to host")
	_, err := c.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team", Name: "one"}})
	if !errors.Is(err, c.fail) {
		t.Errorf("error %v", err)
	}
}

var must = kerneltest.Must
