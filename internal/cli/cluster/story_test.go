// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
)

// step is a Diagnosis at some time.
func step(change func(*v1.DiagnosisStatus)) *v1.Diagnosis {
	d := &v1.Diagnosis{Spec: v1.DiagnosisSpec{NodeName: "worker-7", Mode: v1.ModeRecover}}
	d.Namespace, d.Name = "shop", "web-4k2fd"
	change(&d.Status)
	return d
}

// TestStory: each thing is said once, in the order in which it happens.
func TestStory(t *testing.T) {
	t.Parallel()
	waiting := func(s *v1.DiagnosisStatus) {
		s.Phase = v1.DiagnosisPending
		s.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1.ReasonNoAgent, Message: "No agent answers on node worker-7"}}
	}
	accepted := func(s *v1.DiagnosisStatus) {
		s.Phase = v1.DiagnosisRunning
		s.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Status: metav1.ConditionTrue, Message: "accepted"}}
	}
	planned := func(s *v1.DiagnosisStatus) {
		accepted(s)
		s.Plan = &v1.Plan{Operation: "auto-recover", Hash: strings.Repeat("ab", 32), Changes: []string{"Unmount mount \"/x\x1b\""}, Actions: 1, Lossless: true}
		s.Operations = []v1.OperationRun{
			{ID: 1, Operation: "auto-diagnoser", Phase: v1.OperationSucceeded},
			{ID: 2, Operation: "auto-recover", Phase: v1.OperationRunning, Actions: []v1.Action{{Kind: "Unmount", Target: "/x\x1b", Safety: "it is stale", Phase: v1.ActionPlanned}}},
		}
		s.Faults = []v1.Fault{{Code: "StaleSubPath", State: v1.FaultPresent, Container: "nginx"}}
	}
	lost := func(s *v1.DiagnosisStatus) {
		planned(s)
		s.Phase = v1.DiagnosisUnknown
	}
	healed := func(s *v1.DiagnosisStatus) {
		planned(s)
		s.Phase, s.Outcome, s.Summary = v1.DiagnosisSucceeded, v1.OutcomeHealed, "Repaired StaleSubPath."
		s.Operations[1].Phase, s.Operations[1].Actions[0].Phase = v1.OperationSucceeded, v1.ActionDone
		s.Faults[0].State = v1.FaultHealed
	}
	s := newStory(terminal.Screen{}, step(waiting))
	s.startTime = s.startTime.Add(time.Hour) // so that no time has passed
	var got strings.Builder
	for _, at := range []func(*v1.DiagnosisStatus){waiting, waiting, accepted, planned, lost, lost, healed, healed} {
		got.WriteString(s.newsText(step(at)))
	}
	const want = `  ! waits: No agent answers on node worker-7
  ✗ StaleSubPath: container nginx
    A subPath is still bound to a file that was deleted or replaced
Plan abababababab, 1 action; nothing is lost
   would unmount /x\x1b
  ! the agent of node worker-7 does not answer; the Diagnosis goes on when it is back
  ✓ unmount /x\x1b
✓ Healed in 0 ms. Repaired StaleSubPath
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
	all := newStory(terminal.Screen{}, step(healed))
	all.verbose, all.agreed = true, false
	const steps = `  ✓ accepted by the agent of node worker-7 as Diagnosis shop/web-4k2fd
  ✓ auto-diagnoser
  ✓ auto-recover
`
	if got := all.newsText(step(healed)); !strings.HasPrefix(got, steps) {
		t.Errorf("verbose\n%s\nwant\n%s", got, steps)
	}
	if got, want := all.planText(step(planned)), "     safe: it is stale\nThe hash of the plan covers exactly these lines:\n  Unmount mount \"/x\\x1b\"\n"; !strings.HasSuffix(got, want) {
		t.Errorf("verbose plan\n%s\nwant\n%s", got, want)
	}
}

func TestAnswersOfTheServer(t *testing.T) {
	t.Parallel()
	c := &client{}
	group := schema.GroupResource{Group: v1.Group, Resource: "mountfaults"}
	of := requestAction{"list", group, ctrlclient.ObjectKey{Namespace: "shop"}}
	for name, tc := range map[string]struct {
		answer  error
		refused bool
		want    string
	}{
		"no kind":     {apierrors.NewGenericServerResponse(http.StatusNotFound, "get", group, "", "404 page not found", 0, true), false, "kubediag is not installed: the API server serves no mountfaults.diagnosis.kubediag.org"},
		"no object":   {apierrors.NewNotFound(group, "web"), false, "mountfaults.diagnosis.kubediag.org shop/"},
		"no right":    {apierrors.NewForbidden(group, "", errors.New("eve may not")), true, "refused: mountfaults.diagnosis.kubediag.org is forbidden: eve may not"},
		"no password": {apierrors.NewUnauthorized("who"), false, "does not accept the credentials"},
		"slow":        {apierrors.NewTimeoutError("slow", 1), false, "give it more with --request-timeout"},
		"namespace":   {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), false, `namespaces "shop" not found`},
	} {
		err := c.requestError(of, tc.answer)
		if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, verb.ErrRefused) != tc.refused {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestRefusalsHaveTheirStatus: a plan that has changed and a repair that is held were refused, with any outcome.
func TestRefusalsHaveTheirStatus(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]error{
		v1.ReasonPlanChanged: verb.ErrRefused, v1.ReasonRepairHeld: verb.ErrRefused, v1.ReasonOperationFailed: verb.ErrFaults,
	} {
		out := formatText
		r := &targetRunner{options: &runOptions{out: &out}}
		d := step(func(s *v1.DiagnosisStatus) {
			s.Phase, s.Outcome = v1.DiagnosisFailed, v1.OutcomeFaultFound
			s.Conditions = []metav1.Condition{{Type: v1.ConditionComplete, Reason: reason, Message: "why"}}
		})
		if err := r.finalError(d); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", reason, err, want)
		}
	}
}

func TestUsersOfAClaim(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "a", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "b", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}}}
	pod.Name = "web"
	for claim, want := range map[string]bool{"data": true, "web-b": true, "b": false} {
		if got := usesClaim(pod, claim); got != want {
			t.Errorf("%s: %v", claim, got)
		}
	}
	pod.Status.Phase = corev1.PodSucceeded
	if usesClaim(pod, "data") {
		t.Error("a pod that has ended uses its claim")
	}
}

func TestNamesOfDiagnoses(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string]string{
		"pod/web-7d9f8b6c5-x2x9k": "web-7d9f8b6c5-x2x9k-", "/dev/rbd3@worker-7.example": "rbd3-worker-7-example-", "node/" + strings.Repeat("n", 60): strings.Repeat("n", 50) + "-",
	} {
		if got := (diagnosisTarget{argument: argument}).newDiagnosis(v1.ModePlan, "").GenerateName; got != want {
			t.Errorf("%s: %q, want %q", argument, got, want)
		}
	}
}

func TestDefinitionsOfAnotherRelease(t *testing.T) {
	t.Parallel()
	field := func(properties map[string]fieldSchema) fieldSchema { return fieldSchema{Properties: properties} }
	want := field(map[string]fieldSchema{"spec": field(map[string]fieldSchema{"mode": {}, "node": {}}), "list": {Items: &fieldSchema{Properties: map[string]fieldSchema{"new": {}}}}})
	have := field(map[string]fieldSchema{"spec": field(map[string]fieldSchema{"node": {}, "other": {}}), "list": {Items: &fieldSchema{}}})
	var missing []string
	want.missingFields(have, "", &missing)
	if len(missing) != 2 || !strings.Contains(strings.Join(missing, " "), "spec.mode") || !strings.Contains(strings.Join(missing, " "), "list.new") {
		t.Errorf("missing %q", missing)
	}
}

// TestHeldPlan: a plan that policies hold says why, and run does not ask.
func TestHeldPlan(t *testing.T) {
	t.Parallel()
	plan := func(held int32) *v1.Diagnosis {
		d := step(func(s *v1.DiagnosisStatus) {
			s.Phase, s.Outcome = v1.DiagnosisSucceeded, v1.OutcomePlanned
			s.Plan = &v1.Plan{Operation: "auto-recover", Hash: strings.Repeat("ab", 32), Actions: 2, Lossless: true, HeldActions: held}
			if held > 0 {
				s.Plan.Held = []string{"policy pause is paused. Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis"}
			}
		})
		d.Spec.Mode = v1.ModePlan
		return d
	}
	for held, want := range map[int32]string{
		0: "Plan abababababab, 2 actions; nothing is lost\n",
		1: "Plan abababababab, 2 actions; nothing is lost\n  ! 1 of 2 actions held: policy pause is paused. Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis\n",
		2: "Plan abababababab, 2 actions; nothing is lost\n  ! held: policy pause is paused. Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis\n",
	} {
		d := plan(held)
		if got := newStory(terminal.Screen{}, d).newsText(d); got != want {
			t.Errorf("%d held: %q, want %q", held, got, want)
		}
		r := &targetRunner{options: &runOptions{heal: healAuto}}
		if agreed, err := r.planAgreed(d); err != nil || agreed != (held < 2) {
			t.Errorf("%d held: agreed %v, %v", held, agreed, err)
		}
	}
}

// TestReasonIsSaidOnce: the error of a refusal has its reason, and no line before says it.
func TestReasonIsSaidOnce(t *testing.T) {
	t.Parallel()
	const why = "held by policy: policy pause is paused. Next: set spec.paused of RecoveryPolicy pause to false, and create another Diagnosis"
	failed := func(reason, message string) *v1.Diagnosis {
		return step(func(s *v1.DiagnosisStatus) {
			s.Phase, s.Outcome, s.Summary = v1.DiagnosisFailed, v1.OutcomeFaultFound, "Found, and not repaired: StaleSubPath: "+message
			s.Operations = []v1.OperationRun{{ID: 1, Operation: "auto-recover", Phase: v1.OperationFailed, Message: message,
				Actions: []v1.Action{{Kind: "Unmount", Target: "/x", Phase: v1.ActionFailed, Message: message}}}}
			s.Conditions = []metav1.Condition{{Type: v1.ConditionComplete, Reason: reason, Message: "operation auto-recover (node 1) may not repair now: " + message}}
		})
	}
	for reason, want := range map[string]string{
		v1.ReasonRepairHeld:      "  ✗ auto-recover failed\n  ✗ unmount /x\n",
		v1.ReasonOperationFailed: "  ✗ auto-recover failed\n  ✗ unmount /x\n✗ Found, and not repaired: StaleSubPath: " + why + "\n",
	} {
		d := failed(reason, why)
		got := newStory(terminal.Screen{}, d).newsText(d)
		if got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", reason, got, want)
		}
		out := formatText
		err := (&targetRunner{options: &runOptions{out: &out}}).finalError(d)
		if n := strings.Count(got+err.Error(), why); n != 1 {
			t.Errorf("%s: the reason is said %d times", reason, n)
		}
	}
}
