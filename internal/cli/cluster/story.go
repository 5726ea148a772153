// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/printable"
)

// maxEvidence is how many facts the story shows about a fault. The report shows all of them.
const maxEvidence = 3

// story writes what is new in a Diagnosis, each thing once.
type story struct {
	terminal.Screen
	planned bool // its mode is Plan
	agreed  bool // to a plan that was shown
	said    map[string]bool
	began   time.Time
	begun   atomic.Bool // something has happened
}

func newStory(s terminal.Screen, d *v1.Diagnosis) *story {
	return &story{Screen: s, planned: d.Spec.Mode == v1.ModePlan, agreed: d.Spec.PlanHash != "", said: map[string]bool{}, began: time.Now()}
}

// begin is the headline.
func (s *story) begin(target string) string {
	return s.Text(s.Paint(terminal.Bold, printable.Quoted(target)) + "\n")
}

// once reports whether a text is new.
func (s *story) once(key string) bool {
	if s.said[key] {
		return false
	}
	s.said[key] = true
	return true
}

// news is what has happened since the last time.
func (s *story) news(d *v1.Diagnosis) string {
	var b strings.Builder
	b.WriteString(s.conditions(d))
	for i := range d.Status.Operations {
		b.WriteString(s.operation(&d.Status.Operations[i]))
	}
	for i := range d.Status.Faults {
		b.WriteString(s.present(&d.Status.Faults[i]))
	}
	if p := d.Status.Plan; p != nil && !s.agreed && s.once("plan "+p.Hash) && (s.planned || !ended(d)) {
		b.WriteString(s.plan(d))
	}
	for i := range d.Status.Operations {
		b.WriteString(s.actions(&d.Status.Operations[i]))
	}
	for i := range d.Status.Faults {
		b.WriteString(s.healed(&d.Status.Faults[i]))
	}
	if ended(d) && s.once("end") {
		b.WriteString(s.end(d))
	}
	if b.Len() > 0 {
		s.begun.Store(true)
	}
	return s.Text(b.String())
}

// conditions say who has taken the Diagnosis, or what it waits for.
func (s *story) conditions(d *v1.Diagnosis) string {
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
	switch {
	case d.Status.Phase == v1.DiagnosisUnknown && s.once("lost"):
		return s.Marked("  ", "!", terminal.Yellow, "the agent of node "+d.Spec.NodeName+" does not answer; the Diagnosis goes on when it is back")
	case c == nil || ended(d) && c.Status != metav1.ConditionTrue || !s.once(string(c.Status)+c.Message):
		return ""
	case c.Status == metav1.ConditionTrue:
		return s.Marked("  ", "✓", terminal.Green, fmt.Sprintf("accepted by the agent of node %s as Diagnosis %s/%s", d.Spec.NodeName, d.Namespace, d.Name))
	}
	return s.Marked("  ", "!", terminal.Yellow, "waits: "+c.Message)
}

// operation says how one has ended.
func (s *story) operation(o *v1.OperationRun) string {
	if o.Phase == v1.OperationRunning || !s.once(fmt.Sprintf("operation %d %s", o.ID, o.Phase)) {
		return ""
	}
	text := o.Operation
	if o.StartTime != nil && o.CompletionTime != nil {
		text += fmt.Sprintf(" (%s)", seconds(o.CompletionTime.Sub(o.StartTime.Time)))
	}
	switch o.Phase {
	case v1.OperationSucceeded:
		if s.planned && len(o.Actions) > 0 {
			text += ": planned, and nothing was changed"
		}
	case v1.OperationFailed:
		return s.Marked("  ", "✗", terminal.Red, text+" failed: "+o.Message)
	case v1.OperationNotApplicable:
		return s.Marked("  ", "-", terminal.Dim, text+": "+o.Message)
	}
	return s.Marked("  ", "✓", terminal.Green, text)
}

// healed says which fault is gone.
func (s *story) healed(f *v1.Fault) string {
	name := f.Code + where(f)
	if f.State != v1.FaultHealed || !s.once("healed "+name) {
		return ""
	}
	return s.Marked("  ", "✓", terminal.Green, name+" is healed")
}

// present says what was found, and what proves it. The plan that was agreed to has shown that before.
func (s *story) present(f *v1.Fault) string {
	name := f.Code + where(f)
	if f.State == v1.FaultHealed || s.agreed || !s.once("fault "+name) {
		return ""
	}
	var b strings.Builder
	b.WriteString(s.Marked("  ", "✗", terminal.Red, name))
	for _, fact := range f.Evidence[:min(len(f.Evidence), maxEvidence)] {
		b.WriteString(s.Paint(terminal.Dim, strings.TrimSuffix(s.Wrap("      ", printable.Quoted(fact), 8), "\n")) + "\n")
	}
	return b.String()
}

// where is the place of a fault.
func where(f *v1.Fault) string {
	var parts []string
	for _, p := range []struct{ name, value string }{{"container", f.Container}, {"volume", f.Volume}, {"held by", f.Holder}} {
		if p.value != "" {
			parts = append(parts, p.name+" "+p.value)
		}
	}
	if f.Pod != nil && f.Pod.Name != "" {
		parts = append(parts, "pod "+f.Pod.Namespace+"/"+f.Pod.Name)
	} else if f.Mount != nil && f.Mount.Device != "" {
		parts = append(parts, "device "+f.Mount.Device)
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// plan lists what would be done, and why that is safe.
func (s *story) plan(d *v1.Diagnosis) string {
	p := d.Status.Plan
	loss := "nothing is lost"
	if !p.Lossless {
		loss = "could be lost: " + strings.Join(p.Loss, "; ")
	}
	var b strings.Builder
	b.WriteString(s.Wrap("", printable.Quoted(fmt.Sprintf("Plan %.12s, %s; %s", p.Hash, verb.Count(int(p.Actions), "action"), loss)), 2))
	for _, o := range d.Status.Operations {
		if o.Operation != p.Operation {
			continue
		}
		for i, a := range o.Actions {
			b.WriteString(s.Wrap(fmt.Sprintf("  %d ", i+1), printable.Quoted(a.Kind+" "+a.Target), 4))
			if a.Safety != "" {
				b.WriteString(s.Paint(terminal.Dim, strings.TrimSuffix(s.Wrap("      ", printable.Quoted(a.Safety), 6), "\n")) + "\n")
			}
		}
	}
	return b.String()
}

// actions say which were done and which have failed.
func (s *story) actions(o *v1.OperationRun) string {
	var b strings.Builder
	for i, a := range o.Actions {
		if a.Phase == v1.ActionPlanned || !s.once(fmt.Sprintf("action %d %d %s", o.ID, i, a.Phase)) {
			continue
		}
		text := fmt.Sprintf("%d %s %s", i+1, a.Kind, a.Target)
		if a.Message != "" {
			text += ": " + a.Message
		}
		if a.Phase == v1.ActionFailed {
			b.WriteString(s.Marked("  ", "✗", terminal.Red, text))
		} else {
			b.WriteString(s.Marked("  ", "✓", terminal.Green, text))
		}
	}
	return b.String()
}

// end is the last line: what came of it.
func (s *story) end(d *v1.Diagnosis) string {
	text, took := strings.TrimSuffix(d.Status.Summary, "."), seconds(time.Since(s.began))
	if text == "" {
		if c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionComplete); c != nil {
			text = c.Message
		}
	}
	switch d.Status.Outcome {
	case v1.OutcomePlanned:
		return "" // the plan says it
	case v1.OutcomeHealed:
		return s.Marked("", "✓", terminal.Green, "Healed in "+took+". "+text)
	case v1.OutcomeNoFault:
		return s.Marked("", "✓", terminal.Green, text+" ("+took+")")
	case v1.OutcomeCompleted:
		return s.Marked("", "✓", terminal.Green, text)
	}
	return s.Marked("", "✗", terminal.Red, text)
}

// seconds is a duration, as kubediag scan writes it.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", max(0, d.Milliseconds()))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
