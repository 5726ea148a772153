// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/sentinel"
)

// eventNotes is a recorder that keeps Events as text.
type eventNotes struct {
	mu   sync.Mutex
	list []string
}

func (n *eventNotes) Event(about runtime.Object, kind, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	what := "Diagnosis"
	if ref, ok := about.(*corev1.ObjectReference); ok {
		what = fmt.Sprintf("%s %s/%s %s", ref.Kind, ref.Namespace, ref.Name, ref.UID)
	}
	n.list = append(n.list, fmt.Sprintf("%s %s %s: %s", what, kind, reason, message))
}

func newTestObserver(t *testing.T) (*observer, *eventNotes, *metricReader) {
	t.Helper()
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry, "n1", func() int { return 2 }, func() int64 { return 3 })
	must(t, err)
	n := &eventNotes{}
	return newObserver(n, m, func(context.Context, string) string { return "label" }), n, &metricReader{registry}
}

// metricReader read what was counted.
type metricReader struct{ registry *prometheus.Registry }

// nonZero is all but the repairs and faults that there were none of.
func (n *metricReader) nonZero(t *testing.T) map[string]float64 {
	t.Helper()
	all := n.readAll(t)
	maps.DeleteFunc(all, func(name string, count float64) bool {
		return count == 0 && (strings.HasPrefix(name, "kubediag_repairs_total ") || strings.HasPrefix(name, "kubediag_faults_by_impact "))
	})
	return all
}

func (n *metricReader) readAll(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := n.registry.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

func staleFault(state v1.FaultState) v1.Fault {
	return v1.Fault{
		Code: "StaleSubPath", State: state, Container: "app", Volume: "config", Mount: &v1.Mount{Namespace: 7, Point: "/point"},
		Pod: &v1.FaultPod{Namespace: "ns", Name: "p", UID: "u"}, Evidence: []string{"root is unlinked", "nlink is 0"},
	}
}

func TestRepairIsReported(t *testing.T) {
	t.Parallel()
	o, n, counter := newTestObserver(t)
	atFirst := len(counter.readAll(t))
	d := diagnosis("uid", v1.DiagnosisRunning)
	d.Status.Conditions = []metav1.Condition{{Type: v1.ConditionAccepted, Message: "Diagnosis is accepted by agent on node n1"}}
	o.Accepted(d)
	begin := metav1.NewMicroTime(time.Unix(0, 0))
	end := metav1.NewMicroTime(time.Unix(2, 0))
	o.OperationEnded(d, v1.OperationRun{Operation: "collect", Phase: v1.OperationSucceeded, StartTime: &begin, CompletionTime: &end})
	d.Status.Faults = []v1.Fault{staleFault(v1.FaultPresent)}
	o.OperationEnded(d, v1.OperationRun{Operation: "diagnose", Phase: v1.OperationSucceeded})
	o.ActionEnded(d, "evict", pipeline.ActionEnd{Waiting: true, Action: v1.Action{Kind: "Evict", Target: "ns/p", Fault: "DisconnectedFUSE",
		Phase: v1.ActionFailed, Message: "the budget does not allow it"}})
	o.ActionEnded(d, "recover", pipeline.ActionEnd{Action: v1.Action{Kind: "Unmount", Target: "/point", Fault: "StaleSubPath", Phase: v1.ActionDone,
		Mount: &v1.Mount{Namespace: 7, Point: "/point"}}})
	o.ActionEnded(d, "recover", pipeline.ActionEnd{Action: v1.Action{Kind: "Unmount", Target: "/point", Fault: "StaleSubPath", Phase: v1.ActionFailed,
		Mount: &v1.Mount{Namespace: 7, Point: "/point"}, Message: `unmount "/point": it is busy`}})
	o.ActionEnded(d, "recover", pipeline.ActionEnd{Action: v1.Action{Kind: "RemoveContainerRecord", Target: "c1", Fault: "StaleSubPath",
		Phase: v1.ActionFailed, Message: "remove record: no runtime"}})
	o.ActionEnded(d, "rebind", pipeline.ActionEnd{Action: v1.Action{Kind: "Replace", Target: "/volume", Fault: "DisconnectedFUSE", Phase: v1.ActionDone}})
	o.ActionEnded(d, "rebind", pipeline.ActionEnd{Action: v1.Action{Kind: "Abort", Target: "/volume", Fault: "HungMount", Phase: v1.ActionDone}})
	o.ActionEnded(d, "rebind", pipeline.ActionEnd{Action: v1.Action{Kind: "Replace", Target: "/other", Already: true,
		Fault: "DisconnectedFUSE", Phase: v1.ActionDone, Message: "was replaced already: mount namespace mnt:[7] has gone, and the mount with it"}})
	d.Status.Faults = []v1.Fault{staleFault(v1.FaultHealed)}
	o.OperationEnded(d, v1.OperationRun{Operation: "recover", Phase: v1.OperationSucceeded})
	d.Status.Phase, d.Status.Outcome = v1.DiagnosisSucceeded, v1.OutcomeHealed
	d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{Type: v1.ConditionComplete, Message: "Diagnosis is completed"})
	o.Ended(d)

	const see = ". See: kubectl get diag -n ns d -o yaml"
	const repaired = "Repaired StaleSubPath in container app, volume config: unmounted one mount"
	const replaced = "Repaired DisconnectedFUSE: replaced the dead mount"
	want := []string{
		"Diagnosis Normal DiagnosisAccepted: Diagnosis is accepted by agent on node n1",
		"Diagnosis Normal OperationSucceeded: Operation collect has succeeded",
		"Pod ns/p u Warning StaleSubPath: A subPath is still bound to a file that was deleted or replaced: container app, volume config: " +
			"root is unlinked" + see,
		"Diagnosis Normal OperationSucceeded: Operation diagnose has succeeded",
		"Diagnosis Warning ActionFailed: Evict may not be done yet: the budget does not allow it (ns/p, operation evict)",
		"Diagnosis Normal MountRepaired: " + repaired,
		"Pod ns/p u Normal MountRepaired: " + repaired + see,
		"Diagnosis Warning ActionFailed: Unmount failed in container app, volume config: unmount …: it is busy (operation recover)" + see,
		"Diagnosis Warning ActionFailed: RemoveContainerRecord failed: remove record: no runtime (c1, operation recover)",
		"Diagnosis Normal MountRepaired: " + replaced,
		"Pod ns/p u Normal MountRepaired: " + replaced + see,
		"Diagnosis Normal OperationSucceeded: Operation recover has succeeded",
		"Diagnosis Normal DiagnosisSucceeded: Diagnosis is completed",
	}
	if diff := cmp.Diff(want, n.list); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	counts := map[string]float64{
		"kubediag_operations_total outcome=Succeeded processor=label":                           3,
		"kubediag_operation_duration_seconds processor=label":                                   1,
		"kubediag_repairs_total action=Unmount fault=StaleSubPath outcome=Done":                 1,
		"kubediag_repairs_total action=Unmount fault=StaleSubPath outcome=Failed":               1,
		"kubediag_repairs_total action=RemoveContainerRecord fault=StaleSubPath outcome=Failed": 1,
		"kubediag_repairs_total action=Replace fault=DisconnectedFUSE outcome=Done":             1,
		"kubediag_repairs_total action=Abort fault=HungMount outcome=Done":                      1,
		"kubediag_diagnoses_total outcome=Healed":                                               1,
		"kubediag_agent_info node=n1":                                                           1,
		"kubediag_diagnoses_running":                                                            2,
		"kubediag_abandoned_goroutines":                                                         3,
	}
	if diff := cmp.Diff(counts, counter.nonZero(t)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if more := len(counter.readAll(t)) - atFirst; more != 3 { // of operations and Diagnoses
		t.Errorf("%d metrics were not there before they were counted, want 3: %v", more, counter.readAll(t))
	}
}

func TestFailureIsReported(t *testing.T) {
	t.Parallel()
	o, n, _ := newTestObserver(t)
	d := diagnosis("uid", v1.DiagnosisRunning)
	o.OperationEnded(d, v1.OperationRun{Operation: "look", Phase: v1.OperationNotApplicable, Message: "no stale mount"})
	o.OperationEnded(d, v1.OperationRun{Operation: "ask", Phase: v1.OperationFailed, Reason: "TimedOut", Message: "no answer"})
	d.Status.Phase, d.Status.Outcome = v1.DiagnosisFailed, v1.OutcomeError
	d.Status.Conditions = []metav1.Condition{{Type: v1.ConditionComplete, Message: strings.Repeat("é ", 1000)}}
	o.Ended(d)
	want := []string{
		"Diagnosis Normal OperationNotApplicable: Operation look does not apply: no stale mount",
		"Diagnosis Warning OperationFailed: Operation ask has failed: TimedOut: no answer",
		"Diagnosis Warning DiagnosisFailed: " + strings.TrimSpace(strings.Repeat("é ", 81)) + "… See: kubectl get diag -n ns d -o yaml",
	}
	if diff := cmp.Diff(want, n.list); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestResumedRunReportsItsFaultsAgain: what was told before a restart is not known after it, and nothing is remembered
// about a run that is over.
func TestResumedRunReportsItsFaultsAgain(t *testing.T) {
	t.Parallel()
	o, n, _ := newTestObserver(t)
	d := diagnosis("uid", v1.DiagnosisRunning)
	d.Status.Faults = []v1.Fault{staleFault(v1.FaultPresent), {Code: "MissingBindSource"}}
	for range 2 {
		o.OperationEnded(d, v1.OperationRun{Operation: "op", Phase: v1.OperationSucceeded})
		o.OperationEnded(d, v1.OperationRun{Operation: "op", Phase: v1.OperationSucceeded})
		o.Forget(d.UID)
		if len(o.reportedFaults) != 0 {
			t.Errorf("remembered: %v", o.reportedFaults)
		}
	}
	faultEvents := 0
	for _, line := range n.list {
		if strings.HasPrefix(line, "Pod ") {
			faultEvents++
		}
	}
	if faultEvents != 2 {
		t.Errorf("told %d times: %q", faultEvents, n.list)
	}
}

// TestWaitingSaysWhatToType: the Event on a Diagnosis that waits for its approval ends with the command that approves
// it.
func TestWaitingSaysWhatToType(t *testing.T) {
	t.Parallel()
	o, n, _ := newTestObserver(t)
	d := &v1.Diagnosis{ObjectMeta: metav1.ObjectMeta{Namespace: "kubediag", Name: "web-1"}}
	d.Status.Approval = &v1.ApprovalStatus{
		PlanHash: strings.Repeat("0a", 32), ExpirationTime: metav1.NewTime(time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)),
	}
	o.Waiting(d)
	const want = "Diagnosis Normal WaitingForApproval: Plan 0a0a0a0a0a0a waits for approval until 2026-11-24T00:00:00Z." +
		" See: kubectl kubediag approve web-1 -n kubediag"
	if len(n.list) != 1 || n.list[0] != want {
		t.Errorf("Events %q, want %q", n.list, want)
	}
}

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

// TestLongestEvents makes all texts of an Event as long as they can be, with characters that a terminal must not get.
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
	must(t, l.register(counter.registry, func() sentinel.Status { return sentinel.Status{} }))
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
