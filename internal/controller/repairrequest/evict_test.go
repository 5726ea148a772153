// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repairrequest

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
)

const evictAfter = 20 * time.Minute

// lasting is a fault of the pod web that cannot be repaired, and that policies have evicted after 20 minutes. It has lasted so long.
func lasting(name string, change func(*v1.MountFaultStatus)) *v1.MountFault {
	return faultOf(name, func(s *v1.MountFaultStatus) {
		s.Code, s.Heal, s.Since = "HungMount", v1.HealPerson, metav1.NewTime(start.Add(-evictAfter))
		s.Recovery.Mode, s.Recovery.EvictAfterSeconds = v1.RecoveryAutomatic, int32(evictAfter/time.Second)
		if change != nil {
			change(s)
		}
	})
}

// TestEvicts: the Diagnosis has the mode of the policies, and is made for faults that have lasted.
func TestEvicts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1.MountFaultStatus)
		mode   v1.DiagnosisMode // empty: there is none
		wait   time.Duration
	}{
		"automatic":      {nil, v1.ModeRecover, minInterval},
		"to be approved": {func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryApprove }, v1.ModeApprove, minInterval},
		"a plan":         {func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryPlan }, v1.ModePlan, minInterval},
		"observed":       {func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryObserve }, "", 0},
		"off":            {func(s *v1.MountFaultStatus) { s.Recovery.Mode = v1.RecoveryOff }, "", 0},
		"no escalation":  {func(s *v1.MountFaultStatus) { s.Recovery.EvictAfterSeconds = 0 }, "", 0},
		"refused":        {func(s *v1.MountFaultStatus) { s.Recovery.EvictionRefusal = "evicting pods is not allowed" }, "", 0},
		"of the node":    {func(s *v1.MountFaultStatus) { s.Pod = nil }, "", 0},
		"in work":        {func(s *v1.MountFaultStatus) { s.Diagnosis = "kubediag/d" }, "", minInterval},
		"a second short": {func(s *v1.MountFaultStatus) { s.Since = metav1.NewTime(s.Since.Add(time.Second)) }, "", time.Second},
		"a clock ahead":  {func(s *v1.MountFaultStatus) { s.Since = metav1.NewTime(start.Add(time.Hour)) }, "", evictAfter},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, made := newCluster(t, lasting("one", tc.change)).visit(t, "one")
			if result.RequeueAfter != tc.wait || (len(made) == 1) != (tc.mode != "") {
				t.Fatalf("%+v, %+v", result, made)
			}
			if tc.mode != "" && (made[0].Spec.OperationSet != "pod-evict-op-set" || made[0].Spec.Mode != tc.mode ||
				made[0].Spec.PodReference.Name != "web" || made[0].Spec.NodeName != "n1" || made[0].Labels[v1.LabelOrigin] != v1.OriginPolicy ||
				made[0].Annotations[v1.AnnotationPolicies] != "a,b" || made[0].Spec.Parameters["param.recover.kubernetes.pod_evict.allowed"] != "true") {
				t.Errorf("%+v, %+v", made[0].ObjectMeta, made[0].Spec)
			}
		})
	}
}

// TestEvictsOnceAtATime: a pod has one Diagnosis of its policies at a time, whether it repairs or evicts.
func TestEvictsOnceAtATime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, faultOf("safe", nil), lasting("one", nil), lasting("two", nil))
	for _, name := range []string{"safe", "one", "two"} {
		if result, made := c.visit(t, name); len(made) != 1 || made[0].Spec.OperationSet != v1.DefaultOperationSet || len(made[0].Spec.Parameters) > 0 || result.RequeueAfter != minInterval {
			t.Fatalf("%s: %+v, %+v", name, result, made)
		}
	}
}

// TestEvictionsBackOff: while pods are not evicted, as a budget forbids it, Diagnoses become rare.
func TestEvictionsBackOff(t *testing.T) {
	t.Parallel()
	old := &v1.Diagnosis{}
	old.Namespace, old.Name, old.CreationTimestamp = "kubediag", "of-another-fault", metav1.NewTime(start.Add(-2*evictAfter))
	old.Labels = map[string]string{v1.LabelOrigin: v1.OriginPolicy}
	old.Spec = v1.DiagnosisSpec{OperationSet: v1.EvictOperationSet, PodReference: &v1.PodReference{Namespace: "team", Name: "web"}}
	old.Status.Phase = v1.DiagnosisFailed
	c := newCluster(t, lasting("one", nil), old)
	want := []time.Duration{0, minInterval, 2 * minInterval, 4 * minInterval, maxInterval, maxInterval}
	last, known := start, 1
	for elapsed := time.Duration(0); elapsed < 5*time.Hour && len(want) > 0; elapsed += minInterval / 2 {
		_, made := c.visit(t, "one")
		if len(made) > known {
			if got := c.clock.Now().Sub(last); got != want[0] {
				t.Errorf("%s after the last one, want %s", got, want[0])
			}
			last, want, known = c.clock.Now(), want[1:], len(made)
		}
		for i := range made {
			made[i].Status.Phase = v1.DiagnosisFailed
			must(t, c.Status().Update(t.Context(), &made[i]))
		}
		c.clock.Step(minInterval / 2)
	}
	if len(want) > 0 {
		t.Errorf("still to come: %v", want)
	}
}
