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

// progressPrinter writes what is new in a Diagnosis, each thing once.
type progressPrinter struct {
	terminal.Screen
	planned    bool // its mode is Plan
	agreed     bool // to a plan that was shown
	said       map[string]bool
	startTime  time.Time
	hasStarted atomic.Bool // something has happened
}

func newStory(s terminal.Screen, d *v1.Diagnosis) *progressPrinter {
	return &progressPrinter{Screen: s, planned: d.Spec.Mode == v1.ModePlan, agreed: d.Spec.PlanHash != "", said: map[string]bool{}, startTime: time.Now()}
}

// headline is the headline.
func (p *progressPrinter) headline(target string) string {
	return p.Text(p.Paint(terminal.Bold, printable.Quoted(target)) + "\n")
}

// isNew reports whether a text is new.
func (p *progressPrinter) isNew(key string) bool {
	if p.said[key] {
		return false
	}
	p.said[key] = true
	return true
}

// newsText is what has happened since the last time.
func (s *progressPrinter) newsText(diagnosis *v1.Diagnosis) string {
	var b strings.Builder
	b.WriteString(s.conditionText(diagnosis))
	for i := range diagnosis.Status.Operations {
		b.WriteString(s.operationText(&diagnosis.Status.Operations[i]))
	}
	for i := range diagnosis.Status.Faults {
		b.WriteString(s.faultText(&diagnosis.Status.Faults[i]))
	}
	if p := diagnosis.Status.Plan; p != nil && !s.agreed && s.isNew("plan "+p.Hash) && (s.planned || !hasEnded(diagnosis)) {
		b.WriteString(s.planText(diagnosis))
	}
	for i := range diagnosis.Status.Operations {
		b.WriteString(s.actionLines(&diagnosis.Status.Operations[i]))
	}
	for i := range diagnosis.Status.Faults {
		b.WriteString(s.healedText(&diagnosis.Status.Faults[i]))
	}
	if hasEnded(diagnosis) && s.isNew("end") {
		b.WriteString(s.finalText(diagnosis))
	}
	if b.Len() > 0 {
		s.hasStarted.Store(true)
	}
	return s.Text(b.String())
}

// conditionText say who has taken the Diagnosis, or what it waits for.
func (p *progressPrinter) conditionText(diagnosis *v1.Diagnosis) string {
	c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionAccepted)
	switch {
	case diagnosis.Status.Phase == v1.DiagnosisUnknown && p.isNew("lost"):
		return p.Marked("  ", "!", terminal.Yellow, "the agent of node "+diagnosis.Spec.NodeName+" does not answer; the Diagnosis goes on when it is back")
	case c == nil || hasEnded(diagnosis) && c.Status != metav1.ConditionTrue || !p.isNew(string(c.Status)+c.Message):
		return ""
	case c.Status == metav1.ConditionTrue:
		return p.Marked("  ", "✓", terminal.Green, fmt.Sprintf("accepted by the agent of node %s as Diagnosis %s/%s", diagnosis.Spec.NodeName, diagnosis.Namespace, diagnosis.Name))
	}
	return p.Marked("  ", "!", terminal.Yellow, "waits: "+c.Message)
}

// operationText says how one has ended.
func (p *progressPrinter) operationText(o *v1.OperationRun) string {
	if o.Phase == v1.OperationRunning || !p.isNew(fmt.Sprintf("operation %d %s", o.ID, o.Phase)) {
		return ""
	}
	text := o.Operation
	if o.StartTime != nil && o.CompletionTime != nil {
		text += fmt.Sprintf(" (%s)", formatSeconds(o.CompletionTime.Sub(o.StartTime.Time)))
	}
	switch o.Phase {
	case v1.OperationSucceeded:
		if p.planned && len(o.Actions) > 0 {
			text += ": planned, and nothing was changed"
		}
	case v1.OperationFailed:
		return p.Marked("  ", "✗", terminal.Red, text+" failed: "+o.Message)
	case v1.OperationNotApplicable:
		return p.Marked("  ", "-", terminal.Dim, text+": "+o.Message)
	}
	return p.Marked("  ", "✓", terminal.Green, text)
}

// healedText says which fault is gone.
func (p *progressPrinter) healedText(f *v1.Fault) string {
	name := f.Code + faultLocation(f)
	if f.State != v1.FaultHealed || !p.isNew("healed "+name) {
		return ""
	}
	return p.Marked("  ", "✓", terminal.Green, name+" is healed")
}

// faultText says what was found, and what proves it. The plan that was agreed to has shown that before.
func (p *progressPrinter) faultText(f *v1.Fault) string {
	name := f.Code + faultLocation(f)
	if f.State == v1.FaultHealed || p.agreed || !p.isNew("fault "+name) {
		return ""
	}
	var b strings.Builder
	b.WriteString(p.Marked("  ", "✗", terminal.Red, name))
	for _, fact := range f.Evidence[:min(len(f.Evidence), maxEvidence)] {
		b.WriteString(p.Paint(terminal.Dim, strings.TrimSuffix(p.Wrap("      ", printable.Quoted(fact), 8), "\n")) + "\n")
	}
	return b.String()
}

// faultLocation is the place of a fault.
func faultLocation(f *v1.Fault) string {
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

// planText lists what would be done, and why that is safe.
func (s *progressPrinter) planText(diagnosis *v1.Diagnosis) string {
	p := diagnosis.Status.Plan
	loss := "nothing is lost"
	if !p.Lossless {
		loss = "could be lost: " + strings.Join(p.Loss, "; ")
	}
	var b strings.Builder
	b.WriteString(s.Wrap("", printable.Quoted(fmt.Sprintf("Plan %.12s, %s; %s", p.Hash, verb.Count(int(p.Actions), "action"), loss)), 2))
	for _, o := range diagnosis.Status.Operations {
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

// actionLines say which were done and which have failed.
func (p *progressPrinter) actionLines(o *v1.OperationRun) string {
	var b strings.Builder
	for i, a := range o.Actions {
		if a.Phase == v1.ActionPlanned || !p.isNew(fmt.Sprintf("action %d %d %s", o.ID, i, a.Phase)) {
			continue
		}
		text := fmt.Sprintf("%d %s %s", i+1, a.Kind, a.Target)
		if a.Message != "" {
			text += ": " + a.Message
		}
		if a.Phase == v1.ActionFailed {
			b.WriteString(p.Marked("  ", "✗", terminal.Red, text))
		} else {
			b.WriteString(p.Marked("  ", "✓", terminal.Green, text))
		}
	}
	return b.String()
}

// finalText is the last line: what came of it.
func (p *progressPrinter) finalText(diagnosis *v1.Diagnosis) string {
	text, took := strings.TrimSuffix(diagnosis.Status.Summary, "."), formatSeconds(time.Since(p.startTime))
	if text == "" {
		if c := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete); c != nil {
			text = c.Message
		}
	}
	switch diagnosis.Status.Outcome {
	case v1.OutcomePlanned:
		return "" // the plan says it
	case v1.OutcomeHealed:
		return p.Marked("", "✓", terminal.Green, "Healed in "+took+". "+text)
	case v1.OutcomeNoFault:
		return p.Marked("", "✓", terminal.Green, text+" ("+took+")")
	case v1.OutcomeCompleted:
		return p.Marked("", "✓", terminal.Green, text)
	}
	return p.Marked("", "✗", terminal.Red, text)
}

// formatSeconds is a duration, as kubediag scan writes it.
func formatSeconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", max(0, d.Milliseconds()))
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
