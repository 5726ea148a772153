// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/mountfault"
	"kubediag.org/kubediag/internal/pipeline"
)

// Reasons of Events. On a Pod, a fault that was found has the fault's code for its reason.
const (
	eventAccepted      = "DiagnosisAccepted"
	eventSucceeded     = "DiagnosisSucceeded"
	eventFailed        = "DiagnosisFailed"
	eventMountRepaired = "MountRepaired"
	eventActionFailed  = "ActionFailed"
)

// repairKinds are the actions that repair a mount, in the words of an Event.
var repairKinds = map[fault.ActionKind]string{fault.Unmount: "unmounted one mount", fault.Replace: "replaced the dead mount"}

// observer turns the pipeline's calls into Events and metrics.
type observer struct {
	events  mountfault.Recorder
	metrics *agentMetrics
	// log gets a line for every action, with the calls that it made.
	log logr.Logger
	// label returns the metrics' label for an Operation by name.
	label func(ctx context.Context, operation string) string

	mu             sync.Mutex
	reportedFaults map[types.UID]int // the number of faults of a Diagnosis of which there is an Event
}

func newObserver(events mountfault.Recorder, m *agentMetrics, label func(context.Context, string) string) *observer {
	return &observer{events: events, metrics: m, label: label, reportedFaults: map[types.UID]int{}}
}

// Accepted is called when a Diagnosis was taken for the first time.
func (o *observer) Accepted(d *v1.Diagnosis) {
	message := ""
	if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted); c != nil {
		message = c.Message
	}
	o.sendEvent(d, corev1.EventTypeNormal, eventAccepted, message)
}

// OperationEnded is called with the result of an operation.
func (o *observer) OperationEnded(diagnosis *v1.Diagnosis, run v1.OperationRun) {
	label := o.label(context.Background(), run.Operation)
	o.metrics.operations.WithLabelValues(label, string(run.Phase)).Inc()
	if run.StartTime != nil && run.CompletionTime != nil {
		o.metrics.durations.WithLabelValues(label).Observe(run.CompletionTime.Sub(run.StartTime.Time).Seconds())
	}
	o.reportFaults(diagnosis)
	kind, text := corev1.EventTypeNormal, fmt.Sprintf("Operation %s has succeeded", run.Operation)
	switch run.Phase {
	case v1.OperationSucceeded:
		if run.Reason == v1.ReasonNothingRepaired {
			text = fmt.Sprintf("Operation %s has repaired nothing: %s", run.Operation, run.Message)
		}
	case v1.OperationNotApplicable:
		text = fmt.Sprintf("Operation %s does not apply: %s", run.Operation, run.Message)
	case v1.OperationFailed:
		kind, text = corev1.EventTypeWarning, fmt.Sprintf("Operation %s has failed: %s: %s", run.Operation, run.Reason, run.Message)
	}
	o.sendEvent(diagnosis, kind, "Operation"+string(run.Phase), text)
}

// ActionEnded is called for every action that was done, or that failed. One that failed may be tried again much later,
// and the status is not written before. One that found nothing left to do is no repair, and one that has to wait has
// not failed to be.
func (o *observer) ActionEnded(diagnosis *v1.Diagnosis, operation string, a pipeline.ActionEnd) {
	if a.Already {
		return
	}
	fields := []any{
		"namespace", diagnosis.Namespace, "diagnosis", diagnosis.Name, "uid", diagnosis.UID, "origin", diagnosis.Labels[v1.LabelOrigin],
		"operation", operation, "fault", a.Fault, "action", a.Kind, "target", a.Target, "phase", a.Phase, "calls", a.Calls, "message", a.Message,
	}
	if approved := diagnosis.Status.Approval; approved != nil {
		fields = append(fields, "approval", approved.Name, "approver", approved.Approver, "planHash", approved.PlanHash)
	}
	o.log.Info("Did an action of a plan", fields...)
	if !a.Waiting {
		o.metrics.repairs.WithLabelValues(a.Fault, a.Kind, string(a.Phase)).Inc()
	}
	var broken v1.Fault // the fault with the mount that the action repairs
	if i := slices.IndexFunc(diagnosis.Status.Faults, func(f v1.Fault) bool {
		return f.Code == a.Fault && f.Mount != nil && a.Mount != nil && f.Mount.Namespace == a.Mount.Namespace && f.Mount.Point == a.Mount.Point
	}); i >= 0 {
		broken = diagnosis.Status.Faults[i]
	}
	whose := inWhose(broken.Container, broken.Volume)
	if a.Phase == v1.ActionFailed {
		state := "failed"
		if a.Waiting {
			state = "may not be done yet"
		}
		at := "operation " + operation
		if kubeclient.WithoutPaths(a.Target) == a.Target { // a pod or a container
			at = a.Target + ", " + at
		}
		o.sendEvent(diagnosis, corev1.EventTypeWarning, eventActionFailed, fmt.Sprintf("%s %s%s: %s (%s)", a.Kind, state, whose, a.Message, at))
	}
	done, ok := repairKinds[fault.ActionKind(a.Kind)]
	if !ok || a.Phase != v1.ActionDone {
		return
	}
	text := fmt.Sprintf("Repaired %s%s: %s", a.Fault, whose, done)
	o.sendEvent(diagnosis, corev1.EventTypeNormal, eventMountRepaired, text)
	for _, f := range slices.Concat([]v1.Fault{broken}, diagnosis.Status.Faults) { // the first whose pod is known
		if f.Pod == nil || f.Pod.UID == "" {
			continue
		}
		o.events.Event(mountfault.PodReference(f.Pod), corev1.EventTypeNormal, eventMountRepaired, kubeclient.EventAdvice(text, kubeclient.DiagnosisCommand(diagnosis)))
		return
	}
}

// inWhose is the container and volume of a fault behind " in "; empty if neither is known.
func inWhose(container, volume string) string {
	if whose := mountfault.Whose(container, volume); whose != "" {
		return " in " + whose
	}
	return ""
}

// Ended is called when a Diagnosis is over.
func (o *observer) Ended(diagnosis *v1.Diagnosis) {
	o.reportFaults(diagnosis)
	o.metrics.diagnoses.WithLabelValues(string(diagnosis.Status.Outcome)).Inc()
	message := ""
	if c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete); c != nil {
		message = c.Message
	}
	if diagnosis.Status.Phase == v1.DiagnosisSucceeded {
		o.sendEvent(diagnosis, corev1.EventTypeNormal, eventSucceeded, message)
		return
	}
	o.sendEvent(diagnosis, corev1.EventTypeWarning, eventFailed, message)
}

// Forget drops the memory of a Diagnosis that no longer runs.
func (o *observer) Forget(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.reportedFaults, uid)
}

// reportFaults sends Events about the faults that have been found since it was last called, on the pods that have them.
func (o *observer) reportFaults(diagnosis *v1.Diagnosis) {
	o.mu.Lock()
	from := min(o.reportedFaults[diagnosis.UID], len(diagnosis.Status.Faults))
	o.reportedFaults[diagnosis.UID] = len(diagnosis.Status.Faults)
	o.mu.Unlock()
	for _, f := range diagnosis.Status.Faults[from:] {
		if f.Pod == nil || f.Pod.UID == "" {
			continue
		}
		text := mountfault.Describe(fault.Code(f.Code), f.Container, f.Volume, f.Evidence)
		o.events.Event(mountfault.PodReference(f.Pod), corev1.EventTypeWarning, f.Code,
			kubeclient.EventAdvice(text, kubeclient.DiagnosisCommand(diagnosis)))
	}
}

// sendEvent sends an Event about a Diagnosis. It has no paths: the status and the log have them.
func (o *observer) sendEvent(d *v1.Diagnosis, kind, reason, message string) {
	command := kubeclient.DiagnosisCommand(d)
	if short := kubeclient.WithoutPaths(message); short != message {
		o.events.Event(d, kind, reason, kubeclient.EventAdvice(short, command))
		return
	}
	o.events.Event(d, kind, reason, kubeclient.EventMessage(message, command))
}

// eventBurst is how many Events about one object are sent without delay. The client's own 25 would swallow the last
// word on a Diagnosis with many operations.
const eventBurst = 200

// combinedMessage is the message of many Events that differ in nothing but their messages.
func combinedMessage(e *corev1.Event) string {
	return kubeclient.EventMessage("(combined from similar Events) "+e.Message, "")
}
