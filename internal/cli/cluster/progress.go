// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// progressPrinter writes the news of a Diagnosis, each once.
type progressPrinter struct {
	terminal.Screen
	verbose    bool // nothing is left out of findings, steps and plan
	planShown  bool // just before, by the same call
	planned    bool // its mode is Plan
	agreed     bool // to a plan that was shown
	said       map[string]bool
	startTime  time.Time
	hasStarted atomic.Bool // something has happened
	// conclusion is how the Diagnosis has ended, as its last line says, or the error if it was refused. Empty: it has not ended. A reason in
	// it is not said before.
	conclusion string
	// askEvents reads the Events of the pod when no fault was found; nil: the last line does not depend on them. hints are lines to
	// type about an Event.
	askEvents func(*v1.Diagnosis) podEvents
	hints     func(podEvents) []terminal.Hint
}

func newStory(s terminal.Screen, d *v1.Diagnosis) *progressPrinter {
	w := &progressPrinter{Screen: s, planned: d.Spec.Mode == v1.ModePlan, agreed: d.Spec.PlanHash != "",
		said: map[string]bool{}, startTime: time.Now()}
	if d.Status.CompletionTime != nil { // it is an old story
		w.startTime = w.startTime.Add(d.CreationTimestamp.Sub(d.Status.CompletionTime.Time))
	}
	return w
}

// headline is the target in bold.
func (w *progressPrinter) headline(target string) string {
	return w.Text(w.Paint(terminal.Bold, strings.TrimSuffix(w.Wrap("", printable.Quoted(target), 2), "\n")) + "\n")
}

// isNew reports whether a text is new.
func (w *progressPrinter) isNew(key string) bool {
	if w.said[key] {
		return false
	}
	w.said[key] = true
	return true
}

// newsText is the news since the last call.
func (w *progressPrinter) newsText(diagnosis *v1.Diagnosis) string {
	var text strings.Builder
	text.WriteString(w.conditionText(diagnosis))
	w.conclusion = ""
	if diagnosis.Ended() {
		w.conclusion = diagnosis.Status.Summary
		if c := refusal(diagnosis); c != nil {
			w.conclusion = c.Message
		}
	}
	for i := range diagnosis.Status.Operations {
		text.WriteString(w.operationText(&diagnosis.Status.Operations[i]))
	}
	var found []*v1.Fault
	for i := range diagnosis.Status.Faults {
		if f := &diagnosis.Status.Faults[i]; f.State != v1.FaultHealed && !w.agreed && w.isNew("fault "+render.FaultName(f)) {
			found = append(found, f)
		}
	}
	text.WriteString(render.Faults(w.Screen, found, w.verbose))
	if p := diagnosis.Status.Plan; p != nil && !w.agreed && w.isNew("plan "+p.Hash) && (w.planned || !diagnosis.Ended()) {
		text.WriteString(w.planText(diagnosis))
	}
	text.WriteString(render.Results(w.Screen, w.endedActions(diagnosis), w.reason))
	if diagnosis.Ended() && w.isNew("end") {
		text.WriteString(w.finalText(diagnosis))
	}
	w.hasStarted.CompareAndSwap(false, text.Len() > 0 || diagnosis.Status.Phase == v1.DiagnosisRunning)
	return w.Text(text.String())
}

// endedActions are the actions that have ended since the last time, without those of a plan that was shown just before and that are done.
func (w *progressPrinter) endedActions(d *v1.Diagnosis) (ended []render.Action) {
	for _, o := range d.Status.Operations {
		for i, a := range o.Actions {
			if a.Phase != v1.ActionPlanned && (a.Phase != v1.ActionDone || !w.planShown) && w.isNew(fmt.Sprintf("action %d %d %s", o.ID, i, a.Phase)) {
				ended = append(ended, render.Action{Action: a})
			}
		}
	}
	return ended
}

// conditionText is why the Diagnosis waits, and to a reader who wants all of it, who has taken it.
func (w *progressPrinter) conditionText(diagnosis *v1.Diagnosis) string {
	c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionAccepted)
	switch {
	case diagnosis.Status.Phase == v1.DiagnosisUnknown && w.isNew("lost"):
		return w.Marked("  ", "!", terminal.Yellow, "the agent of node "+diagnosis.Spec.NodeName+" does not answer; the Diagnosis goes on when it is back")
	case c == nil || diagnosis.Ended() && c.Status != metav1.ConditionTrue || !w.isNew(string(c.Status)+c.Message):
		return ""
	case c.Status == metav1.ConditionTrue && !w.verbose:
		return ""
	case c.Status == metav1.ConditionTrue:
		return w.Marked("  ", "✓", terminal.Green, fmt.Sprintf("accepted by the agent of node %s as Diagnosis %s/%s", diagnosis.Spec.NodeName, diagnosis.Namespace, diagnosis.Name))
	}
	return w.Marked("  ", "!", terminal.Yellow, "waits: "+c.Message)
}

// operationText says how one has ended.
func (w *progressPrinter) operationText(o *v1.OperationRun) string {
	if o.Phase == v1.OperationRunning || !w.isNew(fmt.Sprintf("operation %d %s", o.ID, o.Phase)) {
		return ""
	}
	text := o.Operation
	if o.StartTime != nil && o.CompletionTime != nil {
		text += fmt.Sprintf(" (%s)", render.Duration(o.CompletionTime.Sub(o.StartTime.Time)))
	}
	if o.Reason == v1.ReasonNothingRepaired {
		return w.Marked("  ", "!", terminal.Yellow, text+" repaired nothing: "+o.Message)
	}
	switch o.Phase {
	case v1.OperationSucceeded:
		if !w.verbose {
			return ""
		}
	case v1.OperationFailed:
		return w.Marked("  ", "✗", terminal.Red, text+" failed"+w.reason(o.Message))
	case v1.OperationNotApplicable:
		return w.Marked("  ", "-", terminal.Dim, text+": "+o.Message)
	}
	return w.Marked("  ", "✓", terminal.Green, text)
}

// reason is the end of a line with a reason; empty if there is none, or if the last line or the error has it.
func (w *progressPrinter) reason(message string) string {
	if message == "" || strings.Contains(w.conclusion, message) {
		return ""
	}
	return ": " + message
}

// refusal is the condition of a Diagnosis whose repair was refused; nil if it was not.
func refusal(d *v1.Diagnosis) *metav1.Condition {
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete)
	if c != nil && (c.Reason == v1.ReasonPlanChanged || c.Reason == v1.ReasonRepairHeld) {
		return c
	}
	return nil
}

// planText is the plan and its actions. To a reader who wants all of it, it says why they are safe, and has the lines that the hash covers.
func (w *progressPrinter) planText(diagnosis *v1.Diagnosis) string {
	p := diagnosis.Status.Plan
	loss := "nothing is lost"
	if !p.Lossless {
		loss = "could be lost: " + strings.Join(p.Loss, "; ")
	}
	text, actions := w.Wrap("", printable.Quoted(fmt.Sprintf("Plan %.12s, %s; %s", p.Hash, verb.Count(int(p.Actions), "action"), loss)), 2), render.Actions(diagnosis, false)
	if w.verbose {
		return text + render.PlanText(w.Screen, actions, true) + render.Changes(w.Screen, p.Changes, true) + w.heldText(p)
	}
	for i := range actions {
		actions[i].Safety, actions[i].Loss = "", ""
	}
	return text + render.PlanText(w.Screen, actions, false) + w.heldText(p)
}

// details are the plan with all that was left out; nil if nothing was.
func (w *progressPrinter) details(d *v1.Diagnosis) func() string {
	if w.verbose {
		return nil
	}
	return func() string {
		all := newStory(w.Screen, d)
		all.verbose = true
		return w.Text(all.planText(d))
	}
}

// heldText says why policies hold the plan, or a part of it.
func (w *progressPrinter) heldText(p *v1.Plan) (text string) {
	prefix := "held: "
	if !planIsHeld(p) && p.HeldActions > 0 {
		prefix = fmt.Sprintf("%d of %s held: ", p.HeldActions, verb.Count(int(p.Actions), "action"))
	}
	for _, why := range p.Held {
		text += w.Marked("  ", "!", terminal.Yellow, prefix+why)
	}
	return text
}

// planIsHeld reports whether policies hold all of a plan.
func planIsHeld(p *v1.Plan) bool { return p.HeldActions > 0 && p.HeldActions >= p.Actions }

// finalText is the last line: the outcome.
func (w *progressPrinter) finalText(diagnosis *v1.Diagnosis) string {
	text, took := strings.TrimSuffix(diagnosis.Status.Summary, "."), render.Duration(time.Since(w.startTime))
	if text == "" {
		if c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete); c != nil {
			text = c.Message
		}
	}
	switch diagnosis.Status.Outcome {
	case v1.OutcomePlanned:
		return "" // the plan says it
	case v1.OutcomeHealed:
		return w.Marked("", "✓", terminal.Green, "Healed in "+took+". "+text) + w.viewText(diagnosis)
	case v1.OutcomeNoFault:
		// It is no good news while the kubelet cannot mount, or while it is not known whether it can.
		var e podEvents
		if w.askEvents != nil {
			e = w.askEvents(diagnosis)
		}
		switch {
		case e.unread != nil:
			return w.Marked("", "!", terminal.Yellow, text+" ("+took+")") +
				w.Marked("", "!", terminal.Yellow, "The Events of the pod were not looked at: "+e.unread.Error())
		case e.last != nil:
			event := fmt.Sprintf("Event %s of %s, %s ago: %s", e.last.Reason, cmp.Or(e.last.Source.Component, e.last.ReportingController, "an unknown component"),
				duration.HumanDuration(max(0, time.Since(eventTime(e.last)))), strings.Join(strings.Fields(e.last.Message), " "))
			return w.Marked("", "!", terminal.Yellow, "No broken mount was found, but "+event+" ("+took+")") + "\nNext:\n" + w.Hints(w.hints(e), nil)
		}
		return w.Marked("", "✓", terminal.Green, text+" ("+took+")")
	case v1.OutcomeCompleted:
		return w.Marked("", "✓", terminal.Green, text)
	}
	if refusal(diagnosis) != nil {
		return "" // the error says it
	}
	return w.Marked("", "✗", terminal.Red, text)
}

// viewText is the view of containers that ran all the time: a bind of a subPath is replaced on the host alone, and a volume in the
// containers, too.
func (w *progressPrinter) viewText(d *v1.Diagnosis) (text string) {
	binds, volumes := false, false
	for _, a := range render.Actions(d, false) {
		entry, _ := fault.Known().Lookup(fault.Code(a.Fault))
		done := a.Phase == v1.ActionDone
		binds = binds || done && a.Kind == string(fault.Unmount) && entry.Family == fault.FamilyBind
		volumes = volumes || done && a.Kind == string(fault.Replace)
	}
	if binds {
		text += w.Wrap("  ", "Containers that run keep the old file until their next start. They then get the current one.", 2)
	}
	if volumes {
		text += w.Wrap("  ", "Containers that run reach the volume again, and so they do after their next start. Files that they have open stay broken.", 2)
	}
	return text
}
