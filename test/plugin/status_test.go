// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/fakenode"
)

// withStatus makes an object, and then writes its status.
func (p *plugin) withStatus(t *testing.T, c client.Client, o client.Object, change func()) {
	t.Helper()
	p.create(t, c, o)
	change()
	must(t, c.Status().Update(t.Context(), o))
}

// waitingFor is a Diagnosis whose plan waits for approval.
func (p *plugin) waitingFor(t *testing.T, c client.Client) *v1.Diagnosis {
	t.Helper()
	now, changes := metav1.Now(), []string{`boot "b"`, `Unmount mount "/m"`}
	d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "core2-"}}
	d.Spec = v1.DiagnosisSpec{NodeName: fakenode.NodeName, Mode: v1.ModeApprove, PodReference: &v1.PodReference{Namespace: "default", Name: "core2"}}
	p.withStatus(t, c, d, func() {
		d.Status.Phase, d.Status.Outcome = v1.DiagnosisRunning, v1.OutcomeAwaitingApproval
		d.Status.Plan = &v1.Plan{Operation: "auto-recover", Hash: v1.PlanHash(changes), Changes: changes, Actions: 1, Lossless: true}
		d.Status.Approval = &v1.ApprovalStatus{PlanHash: d.Status.Plan.Hash, RequestTime: now, ExpirationTime: metav1.NewTime(now.Add(time.Hour))}
	})
	return d
}

// TestStatus: one screen has the faults, the plan that waits with the line to type, and the holds of each policy.
func TestStatus(t *testing.T) {
	p, c := &plugin{Node: fakenode.New(t)}, clientOfAll(t) // without a manager, which would write the status of these objects
	p.Build(t, "kubectl-kubediag", "")
	p.path = p.Program("kubectl-kubediag")
	p.forgetAgent(t)
	broken := &v1.MountFault{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "core2-"}, Status: v1.MountFaultStatus{
		Code: "StaleSubPath", Node: fakenode.NodeName, Impact: v1.ImpactNextStart, Heal: v1.HealSafe, Since: metav1.Now(), LastSeen: metav1.Now(), Volume: "conf",
		Pod: &v1.FaultPod{Namespace: "default", Name: "core2", UID: p.Pod.UID}, Target: "core2",
	}}
	p.create(t, c, broken)
	waiting := p.waitingFor(t, c)
	policyOf := func(name string, spec v1.RecoveryPolicySpec, change func(*v1.RecoveryPolicyStatus)) {
		o := &v1.RecoveryPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
		p.withStatus(t, c, o, func() { change(&o.Status) })
	}
	nothing := func(*v1.RecoveryPolicyStatus) {}
	policyOf("a-paused", v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, Paused: true, FaultCodes: []string{"HeldDevice"}}, nothing)
	opens := time.Now().UTC().Add(48 * time.Hour)
	policyOf("b-window", v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, FaultCodes: []string{"HungMount"}, Windows: []v1.RecoveryWindow{{Schedule: opens.Format("0 0 2 1 *"), DurationSeconds: 60}},
	}, nothing)
	failed, now := int32(3), metav1.Now()
	policyOf("c-breaker", v1.RecoveryPolicySpec{
		Mode: v1.RecoveryAutomatic, FaultCodes: []string{"StaleSubPath"}, Breaker: &v1.RecoveryBreaker{FailedRepairs: &failed},
	}, func(s *v1.RecoveryPolicyStatus) {
		s.OpenBreakers = 1
		s.Breakers = []v1.BreakerStatus{{Code: "StaleSubPath", State: v1.BreakerOpen, Reason: v1.ReasonFailedRepairs, Message: "4 repairs in a row have failed", OpenedTime: &now}}
	})
	policyOf("d-right", v1.RecoveryPolicySpec{Mode: v1.RecoveryAutomatic, FaultCodes: []string{"DisconnectedFUSE"}}, func(s *v1.RecoveryPolicyStatus) {
		s.Conditions = []metav1.Condition{{Type: v1.ConditionEscalation, Status: metav1.ConditionFalse, Reason: v1.ReasonMissingRight,
			Message: "no node is cordoned: the manager has no right to patch nodes", LastTransitionTime: now}}
	})

	screen := p.call(t, 1, "status", home)
	t.Logf("status:\n%s", screen)
	if n := strings.Count(screen, "\n"); n > 40 {
		t.Errorf("%d lines", n)
	}
	expect(t, screen, `^✗ 1 fault in all namespaces\. At risk at the next start: 1 pod\. One cause\.\n`, `! 1 of 1 nodes is not watched: stage-node \(no agent\)\n`,
		`\nStaleSubPath +next start +default/core2 +conf +stage-node `,
		`\nWaits for you: 1 plan\n  kubectl kubediag approve `+waiting.Name+` -n default +# pod default/core2, for `,
		`\nAllowed now: 4 policies, 4 held\n  ! a-paused, mode Automatic: paused\n  ! b-window, mode Automatic: outside its windows until `+opens.Format(time.DateOnly)+` 00:00 UTC\n`,
		`  ! c-breaker, mode Automatic: breaker of StaleSubPath open in all namespaces: 4 repairs in a row have failed\n`, `  and 1 more: kubectl get rp\n`,
		`\nDone in the last 12 hours: nothing\n`)
	expect(t, p.call(t, 1, "status", home, "-o", "json"), `"no escalation: no node is cordoned: the manager has no right to patch nodes"`)
	blind := p.call(t, 2, "status", home, "--as=eve")
	expect(t, blind, `^! It is not known [a-z ]+: you may not list mountfaults in all namespaces; ClusterRole kubediag-view`,
		`! Waits for you: not known: you may not list diagnoses`, `! Allowed now: not known: you may not list recoverypolicies`)
	if strings.Contains(blind, "✓") {
		t.Errorf("green:\n%s", blind)
	}

	shown := p.call(t, 1, "show", "core2")
	t.Logf("show:\n%s", shown)
	expect(t, shown, `^✗ StaleSubPath default/core2\n`, `\nDiagnosis default/`+waiting.Name+` of pod default/core2, .*waits for approval of its plan\n`, `Plan [0-9a-f]{12}, 1 action`,
		`\n  kubectl kubediag report `+waiting.Name)
	line := strings.Fields(expectLine(t, screen, "kubectl kubediag approve "))
	plan := p.call(t, 1, line[2:6]...) // without a terminal, the line to type is shown with its hash
	expect(t, plan, `Unmount mount "/m"\n`, `Nothing was approved\.`)
	expect(t, p.call(t, 0, append(line[2:6], hash.FindString(plan))...), `Created RecoveryApproval default/`+waiting.Name)
	must(t, c.DeleteAllOf(t.Context(), &v1.RecoveryApproval{}, client.InNamespace("default")))
}

// expectLine is the line of a text that begins with a text, but for blanks.
func expectLine(t *testing.T, text, begin string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, begin) {
			return line
		}
	}
	t.Fatalf("no line begins with %q in:\n%s", begin, text)
	return ""
}
