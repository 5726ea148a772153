// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/sentinel"
)

// strictRecorder is a recorder that keeps Events and takes none that is too long.
type strictRecorder struct {
	*testing.T
	reasons map[string]int
}

func (s *strictRecorder) Event(_ runtime.Object, _, reason, message string) {
	s.reasons[reason]++
	if n := utf8.RuneCountInString(message); n == 0 || n > kubeclient.MaxEventCharacters {
		s.Errorf("%s: %d characters: %q", reason, n, message)
	}
	if !utf8.ValidString(message) || strings.ContainsFunc(message, func(r rune) bool { return !unicode.IsPrint(r) }) {
		s.Errorf("%s: %q is not printable", reason, message)
	}
	if !strings.Contains(message, "…") {
		s.Errorf("%s: %q does not show that it was cut", reason, message)
	}
}

// TestLongestEvents has everything that is told be as long as it can be, and hold what a terminal must not see.
func TestLongestEvents(t *testing.T) {
	t.Parallel()
	o, _, counter := newTestObserver(t)
	s := &strictRecorder{t, map[string]int{}}
	o.events = s
	long, name := strings.Repeat("\x1b]0;\u202e\xff\U0001F4A9 \n", 1<<16), strings.Repeat("n", 253)
	d := diagnosis("uid", v1.DiagnosisRunning)
	d.Namespace, d.Name = strings.Repeat("n", 63), name
	d.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Message: long}, {Type: v1.ConditionComplete, Message: long}}
	o.Accepted(d)
	for _, phase := range []v1.OperationPhase{v1.OperationSucceeded, v1.OperationNotApplicable, v1.OperationFailed} {
		o.OperationEnded(d, v1.OperationRun{Operation: name, Phase: phase, Message: long})
	}
	pod := fault.Pod{Namespace: d.Namespace, Name: name, UID: "u"}
	for _, entry := range fault.Known() {
		d.Status.Faults = append(d.Status.Faults, v1.Fault{
			Code: string(entry.Code), Container: name, Volume: name, Mount: &v1.Mount{Point: long}, Pod: &v1.FaultPod{Namespace: pod.Namespace, Name: name, UID: "u"}, Evidence: []string{long},
		})
	}
	o.ActionEnded(d, name, pipeline.ActionEnd{Action: v1.Action{Kind: string(fault.Unmount), Target: long, Mount: &v1.Mount{Point: long}, Fault: "StaleSubPath", Phase: v1.ActionDone}})
	o.ActionEnded(d, name, pipeline.ActionEnd{Action: v1.Action{Kind: string(fault.Unmount), Fault: "StaleSubPath", Phase: v1.ActionFailed, Message: long}})
	for _, phase := range []v1.DiagnosisPhase{v1.DiagnosisSucceeded, v1.DiagnosisFailed} {
		d.Status.Phase = phase
		o.Ended(d)
	}
	l := newTestSentinelObserver(o, sentinel.Observe, "kubectl logs -n "+d.Namespace+" kubediag-agent-x")
	if err := l.register(counter.registry, func() sentinel.Status { return sentinel.Status{} }); err != nil {
		t.Fatal(err)
	}
	for _, code := range sentinel.Codes(fault.Known()) {
		f := fault.Finding{Code: code, Pod: pod, Container: name, Volume: name, Mount: fault.Mount{Point: long}, Evidence: []string{long}}
		l.Found(f, 0)
		l.Repaired(repairOf(f, errors.New(long)))
		l.Repaired(repairOf(f, nil))
	}
	for _, reason := range []string{
		eventAccepted, eventSucceeded, eventFailed, eventMountRepaired, eventActionFailed, "OperationSucceeded", "OperationNotApplicable",
		"OperationFailed", "HeldDevice", "HungMount",
	} {
		if s.reasons[reason] == 0 {
			t.Errorf("no Event has the reason %s: %v", reason, s.reasons)
		}
	}
	s.Event(nil, "", "combined", combinedMessage(&corev1.Event{Message: strings.Repeat("x", kubeclient.MaxEventCharacters)}))
}
