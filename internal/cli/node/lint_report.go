// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/lint"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// gitHubFormat has lint write for workflows of GitHub.
const gitHubFormat verb.Format = "github"

// lintReport is the result of lint, as it is in JSON.
type lintReport struct {
	SchemaVersion int `json:"schemaVersion"`
	// Findings are in the order of the files. It is never null, nor is Errors.
	Findings []lint.Located `json:"findings"`
	Looked   lintLooked     `json:"looked"`
	// Errors are the failures to read, with file, line and document.
	Errors []string `json:"errors"`

	failed error
}

// lintLooked counts the files, the workloads, and the objects without pods.
type lintLooked struct {
	Files     int `json:"files"`
	Workloads int `json:"workloads"`
	// PassedOver counts the objects that have no pods, by kind.
	PassedOver map[string]int `json:"passedOver"`
}

// addError notes a failure to read.
func (r *lintReport) addError(err error) {
	if err == nil {
		return
	}
	r.failed = errors.Join(r.failed, err)
	r.Errors = append(r.Errors, strings.Split(err.Error(), "\n")...)
}

// objectName names the object of a finding.
func objectName(f lint.Located) string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + name
	}
	return f.Kind + " " + name
}

// reportText is the report for people. Its last line is the verdict.
func (r *lintReport) reportText(s terminal.Screen) string {
	var risks []string
	for _, f := range r.Findings {
		risks = append(risks, render.Risk(s, fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, objectName(f)), f.Finding))
	}
	risky := map[string]bool{}
	for _, f := range r.Findings {
		risky[fmt.Sprintf("%s %d %s", f.File, f.Document, objectName(f))] = true
	}
	text := fmt.Sprintf("No risk found in %s of %s", verb.Count(r.Looked.Workloads, "workload"), verb.Count(r.Looked.Files, "file"))
	if len(risky) > 0 {
		text = fmt.Sprintf("%s in %d of %s", verb.Count(len(r.Findings), "risk"), len(risky), verb.Count(r.Looked.Workloads, "workload"))
	}
	if len(r.Looked.PassedOver) > 0 {
		var kinds []string
		for _, kind := range slices.Sorted(maps.Keys(r.Looked.PassedOver)) {
			kinds = append(kinds, fmt.Sprintf("%d %s", r.Looked.PassedOver[kind], printable.Quoted(kind)))
		}
		text += "; without pods: " + strings.Join(kinds, ", ")
	}
	if len(r.Errors) > 0 {
		text += "; not read: " + verb.Count(len(r.Errors), "document")
	}
	verdict := &render.Page{Screen: s}
	verdict.Line(0, "%s.", text)
	p := &render.Page{Screen: s}
	p.List(risks, strings.Count(verdict.String(), "\n"), "risk")
	return p.String() + verdict.String()
}

// writeFindings writes the report in a format, and returns the error with which the verb ends.
func (r *lintReport) writeFindings(w io.Writer, format verb.Format) error {
	all, text := any(r), r.reportText
	switch format {
	case gitHubFormat:
		text = r.gitHubAnnotations
	case sarifFormat:
		format, all = verb.JSON, r.sarif()
	}
	switch err := render.Write(w, format, all, text); {
	case err != nil:
		return err
	case r.failed != nil:
		return r.failed
	case len(r.Findings) > 0:
		return verb.ErrFaults
	}
	return nil
}

// gitHubAnnotations are the findings as commands of GitHub's workflows, which show each beside its line.
func (r *lintReport) gitHubAnnotations(terminal.Screen) string {
	var b strings.Builder
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, f := range r.Findings {
		message := fmt.Sprintf("%s: %s. Cure: %s.", objectName(f), f.Summary, f.Cure)
		fmt.Fprintf(&b, "::warning file=%s,line=%d,title=%s::%s\n", property.Replace(printable.Quoted(f.File)), f.Line, f.Rule,
			data.Replace(printable.Quoted(message)))
	}
	for _, text := range r.Errors {
		fmt.Fprintf(&b, "::error title=lint::%s\n", data.Replace(printable.Quoted(text)))
	}
	return b.String()
}
