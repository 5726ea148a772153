// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// maxResultLength is how much of a result the report shows, in bytes. -o yaml shows all of it.
const maxResultLength = 4 << 10

// markdownPage is a text in Markdown.
type markdownPage struct{ strings.Builder }

func (p *markdownPage) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// tableRow is a row of a table.
func (p *markdownPage) tableRow(cells ...string) { p.printf("| %s |\n", strings.Join(cells, " | ")) }

// tableHead is the first row of a table and the line below it.
func (p *markdownPage) tableHead(cells ...string) {
	p.tableRow(cells...)
	p.tableRow(slices.Repeat([]string{"---"}, len(cells))...)
}

// Report is the story of a Diagnosis in Markdown.
func Report(diagnosis *v1.Diagnosis) string {
	p := &markdownPage{}
	p.addQuestion(diagnosis)
	p.addFindings(diagnosis)
	p.addPlan(diagnosis)
	p.addOperations(diagnosis)
	p.addResults(diagnosis)
	return p.String()
}

func (p *markdownPage) addQuestion(diagnosis *v1.Diagnosis) {
	status := diagnosis.Status
	p.printf("# Diagnosis %s/%s\n\n", diagnosis.Namespace, diagnosis.Name)
	if status.Summary != "" {
		p.printf("**%s**: %s\n\n", cmp.Or(string(status.Outcome), "No outcome yet"), escapeProse(status.Summary))
	}
	decision, approval := "", "" // of the policy that allowed a repair without a request, and of a person
	if by := status.Decision; by != nil {
		decision = strings.TrimSuffix(by.Mode+": "+by.Reason, ": ")
	}
	if by := status.Approval; by != nil && by.ApproveTime != nil {
		approval = fmt.Sprintf("%s, %s, RecoveryApproval %s", cmp.Or(by.Approver, "a user who is not named"), formatTime(by.ApproveTime), by.Name)
	}
	p.tableHead("", "")
	for _, line := range [][2]string{
		{"target", diagnosis.Spec.Target()},
		{"OperationSet", diagnosis.Spec.Set()},
		{"mode", string(diagnosis.Spec.Mode)},
		{"plan that was agreed to", diagnosis.Spec.PlanHash},
		{"origin", diagnosis.Labels[v1.LabelOrigin]},
		{"policies", diagnosis.Annotations[v1.AnnotationPolicies]},
		{"allowed by", decision},
		{"approved by", approval},
		{"node", diagnosis.Spec.NodeName},
		{"phase", string(status.Phase)},
		{"outcome", string(status.Outcome)},
		{"created", formatTime(&diagnosis.CreationTimestamp)},
		{"started", formatTime(status.StartTime)},
		{"ended", formatTime(status.CompletionTime)},
	} {
		if line[1] != "" {
			p.tableRow(line[0], escapeCode(line[1]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(diagnosis.Spec.Parameters)) {
		p.tableRow(escapeCode(key), escapeCode(diagnosis.Spec.Parameters[key]))
	}
	for _, c := range status.Conditions {
		p.tableRow(c.Type, escapeCode(string(c.Status)+", "+c.Reason+": "+c.Message))
	}
}

func (p *markdownPage) addFindings(d *v1.Diagnosis) {
	p.printf("\n## Findings\n\n")
	if len(d.Status.Faults) == 0 {
		p.printf("No fault was found.\n")
	}
	for i := range d.Status.Faults {
		f := &d.Status.Faults[i]
		p.printf("%d. **%s**, %s%s\n", i+1, escapeProse(f.Code), f.State, escapeProse(faultPlace(f)))
		if entry, ok := fault.Known().Lookup(fault.Code(f.Code)); ok {
			p.printf("   - %s\n", entry.Title)
		}
		if m := f.Mount; m != nil {
			text := fmt.Sprintf("id %d, namespace %d, device %s, %s, root %s, at %s", m.ID, m.Namespace, m.Device, m.FSType, m.Root, m.Point)
			p.printf("   - mount %s\n", escapeCode(text))
		}
		for _, fact := range f.Evidence {
			p.printf("   - %s\n", escapeCode(fact))
		}
	}
}

func (p *markdownPage) addPlan(diagnosis *v1.Diagnosis) {
	plan := diagnosis.Status.Plan
	if plan == nil {
		return
	}
	loss := "Nothing is lost."
	if !plan.Lossless {
		loss = "Could be lost: " + strings.Join(plan.Loss, "; ")
	}
	p.printf("\n## Plan\n\nHash %s, by operation %s. %s\n\n", escapeCode(plan.Hash), escapeCode(plan.Operation), escapeProse(loss))
	p.tableHead("#", "action", "target", "fault", "why it is safe", "what became of it")
	for _, o := range diagnosis.Status.Operations {
		for i, a := range o.Actions {
			became := string(a.Phase)
			if a.Message != "" {
				became += ": " + a.Message
			}
			p.tableRow(fmt.Sprint(i+1), escapeCode(a.Kind), escapeCode(a.Target), escapeCode(a.Fault), escapeCode(a.Safety), escapeCode(became))
		}
	}
	if len(plan.Changes) > 0 {
		p.printf("\n%s\n", changesHeading)
		p.addBlock(strings.Join(plan.Changes, "\n"))
	}
}

// addOperations are the operations, and the changing calls of all actions, in their order.
func (p *markdownPage) addOperations(d *v1.Diagnosis) {
	p.printf("\n## Operations\n\n")
	p.tableHead("#", "operation", "phase", "attempts", "took", "message")
	for _, o := range d.Status.Operations {
		took := ""
		if o.StartTime != nil && o.CompletionTime != nil {
			took = Duration(o.CompletionTime.Sub(o.StartTime.Time))
		}
		p.tableRow(fmt.Sprint(o.ID), escapeCode(o.Operation), string(o.Phase), fmt.Sprint(o.Attempts), took, escapeCode(o.Message))
	}
	begun := false
	for _, o := range d.Status.Operations {
		for i, a := range o.Actions {
			for _, c := range a.Calls {
				if !begun {
					begun = true
					p.printf("\n## Calls\n\n")
					p.tableHead("action", "call", "arguments", "result")
				}
				p.tableRow(fmt.Sprint(i+1), escapeCode(c.Name), escapeCode(c.Arguments), escapeCode(c.Result))
			}
		}
	}
}

// addResults are the outputs of the operations, the proof of a repair among them, and the files that they have left.
func (p *markdownPage) addResults(d *v1.Diagnosis) {
	if len(d.Status.OperationResults) > 0 {
		p.printf("\n## Results and proof\n")
	}
	for _, key := range slices.Sorted(maps.Keys(d.Status.OperationResults)) {
		text := d.Status.OperationResults[key]
		rest := ""
		if len(text) > maxResultLength {
			rest = fmt.Sprintf("\nThe first %d of %d bytes.\n", maxResultLength, len(text))
			text = strings.ToValidUTF8(text[:maxResultLength], "")
		}
		p.printf("\n%s\n", escapeCode(key))
		p.addBlock(text)
		p.printf("%s", rest)
	}
	if len(d.Status.Artifacts) > 0 {
		p.printf("\n## Artifacts on the node\n\n")
		p.tableHead("key", "bytes", "path", "SHA-256", "copied")
	}
	for _, a := range d.Status.Artifacts {
		p.tableRow(escapeCode(a.Key), fmt.Sprint(a.SizeBytes), escapeCode(a.Path), escapeCode(a.SHA256),
			map[bool]string{true: "yes", false: "no"}[len(a.Content) > 0])
	}
}

// addBlock adds lines that Markdown changes nothing in.
func (p *markdownPage) addBlock(text string) {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	p.printf("\n%s\n%s\n%s\n", fence, printable.Text(strings.TrimSuffix(text, "\n")), fence)
}

// escapeProse is a text that Markdown shows as it is.
func escapeProse(text string) string {
	return strings.NewReplacer("\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "<", "&lt;", "[", "\\[", "|", "\\|").Replace(printable.Quoted(text))
}

// escapeCode is a text in one line that Markdown changes nothing in, also in a table.
func escapeCode(text string) string {
	text = strings.ReplaceAll(printable.Quoted(text), "|", "\\|")
	if text == "" {
		return ""
	}
	if strings.Contains(text, "`") {
		return "`` " + strings.ReplaceAll(text, "``", "` `") + " ``"
	}
	return "`" + text + "`"
}

func formatTime(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
