// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
)

// approving is a policy that wants approval, and allows so many repairs on the node, and as many in the cluster.
func approving(repairs int32) *v1.RecoveryPolicy {
	b := &v1.RepairBudget{AtOnce: repairs, PerHour: 1}
	return automatic(func(s *v1.RecoveryPolicySpec) {
		s.Mode, s.Budgets = v1.RecoveryApprove, &v1.RecoveryBudgets{Node: b, Cluster: b}
		s.CooldownSeconds = new(int32)
		*s.CooldownSeconds = 3600
	})
}

// approved is a repair whose plan a person has approved.
func approved(pod *corev1.Pod) Request {
	return Request{Code: fault.StaleSubPath, Pod: pod, Approved: true}
}

// TestApprovedRepairs take from the budgets when they are made, although the sentinel may repair nothing.
func TestApprovedRepairs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		g := begin(t, s)
		g.Set(approving(2))
		if acquired(t, g, 3) != 0 || s.count() != 0 {
			t.Error("repaired without an approval")
		}
		p := podOf(0)
		for i := range 2 { // of the same mount: a cooldown does not count
			if held, err := g.AcquireRequested(t.Context(), approved(p)); held.Why != "" || err != nil {
				t.Errorf("repair %d: %q, %v", i, held, err)
			}
			g.Ended(faultOf(p).Key(), faultOf(p).Pod, nil)
		}
		if s.count() == 0 {
			t.Error("no slot of the cluster's budget")
		}
		for _, of := range []string{"the node", "the cluster"} {
			held, err := g.AcquireRequested(t.Context(), approved(p))
			if err != nil || held.Why != "the budget of policy p for "+of+" is used up" || time.Until(held.Until) != time.Hour {
				t.Errorf("%q, %v", held, err)
			}
			time.Sleep(time.Until(held.Until))
			g.Freshness.Answered()
		}
		if held, err := g.AcquireRequested(t.Context(), approved(p)); held.Why != "" || err != nil {
			t.Errorf("when both holds have ended: %q, %v", held, err)
		}
		g.Set(automatic(nil))
		if held, err := g.AcquireRequested(t.Context(), approved(nil)); held.Why != "" || err != nil {
			t.Errorf("of no pod, without an approval: %q, %v", held, err)
		}
	})
}

// TestApprovedRepairsAreHeld: what the policies say at the time of the repair counts, and not what they said before.
func TestApprovedRepairsAreHeld(t *testing.T) {
	t.Parallel()
	failed := int32(2)
	for name, tc := range map[string]struct {
		change func(g *Guard, s *server, pod *corev1.Pod)
		why    string
		next   string
	}{
		"paused": {func(g *Guard, _ *server, _ *corev1.Pod) {
			p := approving(2)
			p.Spec.Paused = true
			g.Set(p)
		}, "policy p is paused", "set spec.paused of RecoveryPolicy p to false, and create another Diagnosis"},
		"out of its windows": {func(g *Guard, _ *server, _ *corev1.Pod) {
			p := approving(2)
			p.Spec.Windows = []v1.RecoveryWindow{{Schedule: "0 3 * * *", DurationSeconds: 60, TimeZone: "UTC"}}
			g.Set(p)
		}, "policy p allows repairs only in its windows", "until 2000-01-01T03:00:00Z. Next: wait until then, and create another Diagnosis"},
		"observe": {func(g *Guard, _ *server, _ *corev1.Pod) {
			p := approving(2)
			p.Spec.Mode = v1.RecoveryObserve
			g.Set(p)
		}, "policy p has mode Observe", "set spec.mode of RecoveryPolicy p to Approve or Automatic"},
		"deleted": {func(g *Guard, _ *server, _ *corev1.Pod) { g.Delete("p") }, "no RecoveryPolicy selects the fault", "create a RecoveryPolicy"},
		"pod opts out": {func(_ *Guard, _ *server, pod *corev1.Pod) {
			pod.Annotations = map[string]string{v1.AnnotationRecovery: "off"}
		}, "the pod has the annotation", "remove the annotation from the pod"},
		"breaker": {func(g *Guard, _ *server, pod *corev1.Pod) {
			p := approving(2)
			p.Spec.Breaker = &v1.RecoveryBreaker{FailedRepairs: &failed}
			g.Set(p)
			for range failed {
				g.Ended(faultOf(pod).Key(), faultOf(pod).Pod, errors.New("busy"))
			}
		}, "2 repairs of StaleSubPath in a row have failed", "set spec.breaker.resetTime of RecoveryPolicy p"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				g, pod := begin(t, s), podOf(0)
				g.Set(approving(2))
				tc.change(g, s, pod)
				held, err := g.AcquireRequested(t.Context(), approved(pod))
				if err != nil || !strings.HasPrefix(held.Why, tc.why) || !strings.Contains(held.String(), tc.next) || s.count() != 0 {
					t.Errorf("%q, %v, %d slots", held, err, s.count())
				}
			})
		})
	}
}

// TestFailedApprovedRepairIsCounted: once, at the volume of its action, although other volumes of the container have the fault too.
func TestFailedApprovedRepairIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, pod := begin(t, &server{}), podOf(0)
		g.Set(approving(2))
		failed := faultOf(pod)
		g.Ended(failed.Key(), failed.Pod, errors.New("busy"))
		for volume, want := range map[string]int32{failed.Volume: 1, "b": 0, "c": 0} {
			f := faultOf(pod)
			f.Volume = volume
			r := g.Recovery([]fault.Finding{f, f}, pod)
			if r.FailedRepairs != want || (r.LastFailureTime != nil) != (want > 0) {
				t.Errorf("volume %q: %+v, want %d", volume, r, want)
			}
		}
	})
}

// TestApprovedRepairNeedsTheServer: without an answer about the namespace it is not known whether its owner opts out.
func TestApprovedRepairNeedsTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{err: errors.New("no route to host")})
		g.Set(approving(2))
		if held, err := g.AcquireRequested(t.Context(), approved(podOf(0))); err == nil {
			t.Errorf("%q", held)
		}
	})
}

// TestConsent: a policy in mode Approve holds a Trigger whose plan no person has approved.
func TestConsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		g.Set(approving(1))
		for by, held := range map[Consent]bool{NoConsent: true, PlanApproved: false, MadeByPerson: false} {
			got, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(0), by)
			if err != nil || (got.Why == "policy p wants approval") != held || (got.Why == "") == held {
				t.Errorf("consent %d: %q, %v", by, got, err)
			}
		}
		opted := podOf(0)
		opted.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: "p", Annotations: map[string]string{v1.AnnotationRecovery: "off"}}
		if held, err := g.Hold(t.Context(), fault.StaleSubPath, opted, PlanApproved); held.Why == "" || err != nil {
			t.Errorf("the owner of the pod opts out: %q, %v", held, err)
		}
	})
}

// TestOptOutHoldsOtherNamespaces: the annotation of the pod or of its namespace holds every Diagnosis but that of a person in the namespace of the pod,
// whatever the policies say, and the reason is the annotation.
func TestOptOutHoldsOtherNamespaces(t *testing.T) {
	t.Parallel()
	off := map[string]string{v1.AnnotationRecovery: "off"}
	for name, p := range map[string]*v1.RecoveryPolicy{
		"no policy": nil, "automatic": automatic(nil), "observe": automatic(func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryObserve }),
		"off": automatic(func(s *v1.RecoveryPolicySpec) { s.Mode = v1.RecoveryOff }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for _, by := range []Consent{NoConsent, PlanApproved, MadeElsewhere, MadeByPerson} {
					for object, want := range map[string]string{"pod": "the pod has the annotation", "namespace": "the namespace has the annotation"} {
						s, opted := &server{}, podOf(0)
						if object == "pod" {
							opted.Annotations = off
						} else {
							s.annotations = off
						}
						g := begin(t, s)
						if p != nil {
							g.Set(p)
						}
						held, err := g.Hold(t.Context(), fault.StaleSubPath, opted, by)
						if err != nil || strings.HasPrefix(held.Why, want) == (by == MadeByPerson) || (held.Why == "") != (by == MadeByPerson) {
							t.Errorf("%s, consent %d: %q, %v", object, by, held, err)
						}
						if held, err := g.Hold(t.Context(), fault.StaleSubPath, podOf(1), MadeElsewhere); object == "pod" && (held.Why != "" || err != nil) {
							t.Errorf("another pod: %q, %v", held, err)
						}
					}
				}
			})
		})
	}
}

// TestRequestedEviction: the escalation of all policies and, in mode Approve, a person have to allow it.
func TestRequestedEviction(t *testing.T) {
	t.Parallel()
	evicting := func(name string, mode v1.RecoveryMode, seconds int32) *v1.RecoveryPolicy {
		p := automatic(func(s *v1.RecoveryPolicySpec) {
			s.Mode, s.Escalation = mode, &v1.RecoveryEscalation{Evict: &v1.EvictEscalation{AfterSeconds: seconds}}
		})
		p.Name = name
		return p
	}
	for name, tc := range map[string]struct {
		policies []*v1.RecoveryPolicy
		finding  fault.Finding
		pod      map[string]string // annotations
		approved bool
		after    int32  // that the MountFault has
		refusal  string // that the MountFault has
		why      string // of the refusal to evict
	}{
		"one policy":         {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600)}, after: 600},
		"the longest time":   {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600), evicting("q", v1.RecoveryAutomatic, 900)}, after: 900},
		"not all want it":    {policies: []*v1.RecoveryPolicy{evicting("q", v1.RecoveryAutomatic, 600), automatic(nil)}, why: "policy p has no spec.escalation.evict"},
		"approved":           {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryApprove, 600)}, approved: true, after: 600},
		"to be approved":     {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryApprove, 600)}, after: 600, why: "policy p wants approval"},
		"a plan":             {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryPlan, 600)}, after: 600, why: "policy p has mode Plan"},
		"observed":           {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryObserve, 600)}, why: "policy p has mode Observe"},
		"no policy":          {why: "no RecoveryPolicy selects the fault"},
		"the owner opts out": {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600)}, pod: map[string]string{v1.AnnotationRecovery: "off"}, why: "the pod has"},
		"the agent refuses":  {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600)}, pod: map[string]string{"refused": "why"}, after: 600, refusal: "why"},
		"repair in place":    {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600)}, finding: fault.Finding{Details: fault.Details{Repair: fault.Replace}}},
		"no dead volume":     {policies: []*v1.RecoveryPolicy{evicting("p", v1.RecoveryAutomatic, 600)}, finding: fault.Finding{Code: fault.StaleSubPath}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, pod := begin(t, &server{}), podOf(0)
				pod.Annotations = tc.pod
				for _, p := range tc.policies {
					g.Set(p)
				}
				f := tc.finding
				f.Code, f.Details.Place = cmp.Or(f.Code, fault.HungMount), fault.PlaceVolume
				held, err := g.AcquireRequested(t.Context(), Request{Code: f.Code, Pod: pod, Approved: tc.approved, Evicts: true})
				if err != nil || !strings.HasPrefix(held.Why, tc.why) || (held.Why == "") != (tc.why == "") {
					t.Errorf("%q, %v", held, err)
				}
				if r := g.Recovery([]fault.Finding{f}, pod); r.EvictAfterSeconds != tc.after || r.EvictionRefusal != tc.refusal {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// TestPausedRecovery: a MountFault names the policy whose pause holds every repair, and no policy that is not paused.
func TestPausedRecovery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := begin(t, &server{})
		p := podOf(0)
		for paused, want := range map[bool]string{true: "p", false: ""} {
			g.Set(automatic(func(s *v1.RecoveryPolicySpec) { s.Paused = paused }))
			if r := g.Recovery([]fault.Finding{faultOf(p)}, p); r.PausedBy != want {
				t.Errorf("paused %v: %+v", paused, r)
			}
		}
	})
}
