// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// maxResult is how much of a result the report shows, in bytes. -o yaml shows all of it.
const maxResult = 4 << 10

func newReportCommand(c *connection) *cobra.Command {
	var out *format
	var dir string
	cmd := &cobra.Command{
		Use:   "report NAME",
		Short: "Write the whole story of a Diagnosis, for a ticket",
		Long: "report writes all that a Diagnosis says: the question, the findings with their evidence, the plan, what was done, and the\n" +
			"proof. In JSON and YAML, it is the Diagnosis itself.\n\n" +
			"With --artifacts, it writes the artifacts of a Diagnosis into a directory: the mount table of the node, and the Pod. They are in\n" +
			"a Diagnosis that was made by run --artifacts. Credentials are taken out.",
		Example:           "  kubectl kubediag report web-x2x9k-4k2fd -n shop > ticket.md",
		Args:              verb.Takes("NAME", 1),
		ValidArgsFunction: verb.CompleteArg(c.namesOf(diagnoses)),
		RunE: verb.Named(func(cmd *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			d := &v1.Diagnosis{}
			if err := client.get(cmd.Context(), diagnoses.in(client.namespace), args[0], d); err != nil {
				return err
			}
			if dir != "" {
				return saveArtifacts(cmd, client, d, dir)
			}
			if *out == inJSON || *out == inYAML {
				return newPrinter(*out, v1.GroupVersion.WithKind("Diagnosis")).object(cmd.OutOrStdout(), d)
			}
			return verb.Write(cmd.OutOrStdout(), report(d))
		}),
	}
	cmd.Flags().StringVar(&dir, "artifacts", "", "write the artifacts into this directory, which must be new or empty, and no report")
	out = addFormat(cmd, markdown, inJSON, inYAML)
	return cmd
}

// page is a text in Markdown.
type page struct{ strings.Builder }

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// row is a row of a table.
func (p *page) row(cells ...string) { p.printf("| %s |\n", strings.Join(cells, " | ")) }

// report is the story of a Diagnosis in Markdown.
func report(d *v1.Diagnosis) string {
	p := &page{}
	p.question(d)
	p.findings(d)
	p.plan(d)
	p.operations(d)
	p.calls(d)
	p.results(d)
	p.artifacts(d)
	return p.String()
}

func (p *page) question(d *v1.Diagnosis) {
	s := d.Status
	p.printf("# Diagnosis %s/%s\n\n", d.Namespace, d.Name)
	if s.Summary != "" {
		p.printf("**%s**: %s\n\n", cmp.Or(string(s.Outcome), "No outcome yet"), prose(s.Summary))
	}
	p.row("", "")
	p.row("---", "---")
	for _, line := range [][2]string{
		{"target", d.Spec.Target()}, {"OperationSet", d.Spec.Set()}, {"mode", string(d.Spec.Mode)}, {"plan that was agreed to", d.Spec.PlanHash},
		{"origin", d.Labels[v1.LabelOrigin]}, {"policies", d.Annotations[v1.AnnotationPolicies]}, {"allowed by", allowed(s.Decision)},
		{"approved by", approved(s.Approval)}, {"node", d.Spec.NodeName}, {"phase", string(s.Phase)}, {"outcome", string(s.Outcome)}, {"created", moment(&d.CreationTimestamp)},
		{"started", moment(s.StartTime)}, {"ended", moment(s.CompletionTime)},
	} {
		if line[1] != "" {
			p.row(line[0], code(line[1]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
		p.row(code(key), code(d.Spec.Parameters[key]))
	}
	for _, c := range s.Conditions {
		p.row(c.Type, code(string(c.Status)+", "+c.Reason+": "+c.Message))
	}
}

// allowed says what allowed a repair without a request.
func allowed(by *v1.Decision) string {
	if by == nil {
		return ""
	}
	return strings.TrimSuffix(by.Mode+": "+by.Reason, ": ")
}

// approved says who approved the plan, when, and by which object.
func approved(by *v1.ApprovalStatus) string {
	if by == nil || by.ApproveTime == nil {
		return ""
	}
	return fmt.Sprintf("%s, %s, RecoveryApproval %s", cmp.Or(by.Approver, "a user who is not named"), moment(by.ApproveTime), by.Name)
}

func (p *page) findings(d *v1.Diagnosis) {
	p.printf("\n## Findings\n\n")
	if len(d.Status.Faults) == 0 {
		p.printf("No fault was found.\n")
	}
	for i := range d.Status.Faults {
		f := &d.Status.Faults[i]
		p.printf("%d. **%s**, %s%s\n", i+1, prose(f.Code), f.State, prose(where(f)))
		if entry, ok := fault.Lookup(fault.Code(f.Code)); ok {
			p.printf("   - %s\n", entry.Title)
		}
		if m := f.Mount; m != nil {
			text := fmt.Sprintf("id %d, namespace %d, device %s, %s, root %s, at %s", m.ID, m.Namespace, m.Device, m.FSType, m.Root, m.Point)
			p.printf("   - mount %s\n", code(text))
		}
		for _, fact := range f.Evidence {
			p.printf("   - %s\n", code(fact))
		}
	}
}

func (p *page) plan(d *v1.Diagnosis) {
	plan := d.Status.Plan
	if plan == nil {
		return
	}
	loss := "Nothing is lost."
	if !plan.Lossless {
		loss = "Could be lost: " + strings.Join(plan.Loss, "; ")
	}
	p.printf("\n## Plan\n\nHash %s, by operation %s. %s\n\n", code(plan.Hash), code(plan.Operation), prose(loss))
	p.row("#", "action", "target", "fault", "why it is safe", "what became of it")
	p.row("---", "---", "---", "---", "---", "---")
	for _, o := range d.Status.Operations {
		for i, a := range o.Actions {
			became := string(a.Phase)
			if a.Message != "" {
				became += ": " + a.Message
			}
			p.row(fmt.Sprint(i+1), code(a.Kind), code(a.Target), code(a.Fault), code(a.Safety), code(became))
		}
	}
}

func (p *page) operations(d *v1.Diagnosis) {
	p.printf("\n## Operations\n\n")
	p.row("#", "operation", "phase", "attempts", "took", "message")
	p.row("---", "---", "---", "---", "---", "---")
	for _, o := range d.Status.Operations {
		took := ""
		if o.StartTime != nil && o.CompletionTime != nil {
			took = seconds(o.CompletionTime.Sub(o.StartTime.Time))
		}
		p.row(fmt.Sprint(o.ID), code(o.Operation), string(o.Phase), fmt.Sprint(o.Attempts), took, code(o.Message))
	}
}

// calls are the changing calls of all actions, in their order.
func (p *page) calls(d *v1.Diagnosis) {
	begun := false
	for _, o := range d.Status.Operations {
		for i, a := range o.Actions {
			for _, c := range a.Calls {
				if !begun {
					begun = true
					p.printf("\n## Calls\n\n")
					p.row("action", "call", "arguments", "result")
					p.row("---", "---", "---", "---")
				}
				p.row(fmt.Sprint(i+1), code(c.Name), code(c.Arguments), code(c.Result))
			}
		}
	}
}

// results are what the operations have written, the proof of a repair among them.
func (p *page) results(d *v1.Diagnosis) {
	if len(d.Status.OperationResults) == 0 {
		return
	}
	p.printf("\n## Results and proof\n")
	for _, key := range slices.Sorted(maps.Keys(d.Status.OperationResults)) {
		text := d.Status.OperationResults[key]
		rest := ""
		if len(text) > maxResult {
			rest = fmt.Sprintf("\nThe first %d of %d bytes.\n", maxResult, len(text))
			text = strings.ToValidUTF8(text[:maxResult], "")
		}
		fence := "```"
		for strings.Contains(text, fence) {
			fence += "`"
		}
		p.printf("\n%s\n\n%s\n%s\n%s\n%s", code(key), fence, printable.Text(strings.TrimSuffix(text, "\n")), fence, rest)
	}
}

func (p *page) artifacts(d *v1.Diagnosis) {
	if len(d.Status.Artifacts) == 0 {
		return
	}
	p.printf("\n## Artifacts on the node\n\n")
	p.row("key", "bytes", "path", "SHA-256", "copied")
	p.row("---", "---", "---", "---", "---")
	for _, a := range d.Status.Artifacts {
		p.row(code(a.Key), fmt.Sprint(a.SizeBytes), code(a.Path), code(a.SHA256), map[bool]string{true: "yes", false: "no"}[len(a.Content) > 0])
	}
}

// prose is a text that Markdown shows as it is.
func prose(text string) string {
	return strings.NewReplacer("\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "<", "&lt;", "[", "\\[", "|", "\\|").Replace(printable.Quoted(text))
}

// code is a text in one line that Markdown changes nothing in, also in a table.
func code(text string) string {
	text = strings.ReplaceAll(printable.Quoted(text), "|", "\\|")
	if text == "" {
		return ""
	}
	if strings.Contains(text, "`") {
		return "`` " + strings.ReplaceAll(text, "``", "` `") + " ``"
	}
	return "`" + text + "`"
}

func moment(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// maxArtifact bounds what a copy may become when it is unpacked, in bytes. An agent copies no larger file.
const maxArtifact = 64 << 20

// noFileName is all that may not be in the name of a file.
var noFileName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// saveArtifacts writes the copies in a Diagnosis into a directory. It writes over no file.
func saveArtifacts(cmd *cobra.Command, c *client, d *v1.Diagnosis, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--artifacts=%q: %w", dir, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return errors.Join(fmt.Errorf("--artifacts=%q: must be a new directory, or an empty one", dir), err)
	}
	saved := 0
	for i := range d.Status.Artifacts {
		a := &d.Status.Artifacts[i]
		if len(a.Content) == 0 {
			line := fmt.Sprintf("%s is only on node %s: %s\n", a.Key, d.Spec.NodeName, a.Path)
			if err := verb.Write(cmd.ErrOrStderr(), printable.Text(line)); err != nil {
				return err
			}
			continue
		}
		name := filepath.Join(dir, fmt.Sprintf("%d-%.100s", i+1, noFileName.ReplaceAllString(a.Key, "_")))
		if err := unpack(a.Content, name); err != nil {
			return fmt.Errorf("artifact %s: %w", a.Key, err)
		}
		saved++
		if err := verb.Write(cmd.OutOrStdout(), printable.Text(name+"\n")); err != nil {
			return err
		}
	}
	if saved == 0 {
		return fmt.Errorf("diagnosis %s/%s has no copies of artifacts: make one that has them: %s", d.Namespace, d.Name,
			c.command("run", "pod/NAME", "--heal=never", "--artifacts"))
	}
	return nil
}

// unpack writes a new file with what was compressed.
func unpack(content []byte, name string) error {
	r, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(r, maxArtifact+1))
	if n > maxArtifact {
		err = fmt.Errorf("unpack: it is larger than %d bytes", maxArtifact)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
