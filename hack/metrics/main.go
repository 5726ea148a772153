// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Command metrics generates documents and alert rules. It reads the catalogue of faults, the declarations of metrics and the alert
// rules. It writes the lists of faults in the documents and in config/alerts/kubediag.yaml, the tables in docs/spec/metrics.md,
// and config/alerts/prometheusrule.yaml. It works in the root of the source tree.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/agent"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/manager"
	"kubediag.org/kubediag/internal/metric"
)

// Files, relative to the root of the source tree.
const (
	page       = "docs/spec/metrics.md"
	rules      = "config/alerts/kubediag.yaml"
	ruleObject = "config/alerts/prometheusrule.yaml"
)

func main() {
	if err := write("."); err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// write writes the files in the tree at root.
func write(root string) error {
	lists, err := faultFiles(root, fault.Known())
	if err != nil {
		return err
	}
	for name, text := range lists {
		if err := os.WriteFile(root+"/"+name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	for name, make := range files { // these rest on the lists
		text, err := make(root)
		if err != nil {
			return err
		}
		if err := os.WriteFile(root+"/"+name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// files are the written files, and how each is made.
var files = map[string]func(root string) (string, error){page: makePage, ruleObject: makeRuleObject}

// tables are the programs by the headings of their tables.
var tables = map[string]func() []metric.Declaration{"## Agent": agent.Metrics, "## Manager": manager.Metrics}

// makePage puts the tables in the place of those that are there: below a heading, the first lines that begin with a bar.
func makePage(root string) (string, error) {
	text, err := os.ReadFile(root + "/" + page)
	if err != nil {
		return "", fmt.Errorf("reading page: %w", err)
	}
	for heading, declared := range tables {
		before, after, found := strings.Cut(string(text), heading+"\n\n|")
		if !found {
			return "", fmt.Errorf("%s: no table follows %q", page, heading)
		}
		_, rest, found := strings.Cut(after, "\n\n")
		if !found {
			return "", fmt.Errorf("%s: nothing follows the table below %q", page, heading)
		}
		text = []byte(before + heading + "\n\n" + table(declared()) + "\n" + rest)
	}
	return string(text), nil
}

// ruleHead makes a PrometheusRule of the rules.
const ruleHead = `# SPDX-FileCopyrightText: The kubediag Authors
# SPDX-License-Identifier: Apache-2.0

# Written by make generate from kubediag.yaml, for the Prometheus operator. Set the labels that your Prometheus selects.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kubediag
  namespace: kubediag
spec:
`

// makeRuleObject indents the rules below spec.
func makeRuleObject(root string) (string, error) {
	text, err := os.ReadFile(root + "/" + rules)
	if err != nil {
		return "", fmt.Errorf("reading rules: %w", err)
	}
	_, groups, found := strings.Cut(string(text), "\ngroups:\n")
	if !found {
		return "", fmt.Errorf("%s has no groups", rules)
	}
	var b strings.Builder
	b.WriteString(ruleHead + "  groups:\n")
	for line := range strings.Lines(groups) {
		if strings.TrimSpace(line) != "" {
			b.WriteString("  ")
		}
		b.WriteString(line)
	}
	return b.String(), nil
}

// table is the declarations as a table of Markdown, in the order of their names.
func table(all []metric.Declaration) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, d := range slices.SortedFunc(slices.Values(all), func(a, b metric.Declaration) int { return strings.Compare(a.Name, b.Name) }) {
		labels := make([]string, 0, len(d.Labels))
		for _, l := range d.Labels {
			text := "`" + l.Name + "`"
			if l.Values != "" {
				text += " (" + l.Values + ")"
			}
			labels = append(labels, text)
		}
		meaning := strings.TrimSuffix(strings.TrimSpace(d.Help+" "+d.More), ".")
		fmt.Fprintf(&b, "| `%s` | %s | %s| %s |\n", d.Name, d.Kind, cell(strings.Join(labels, ", ")), meaning)
	}
	return b.String()
}

// cell is a text with the space before the bar that follows, if there is a text.
func cell(text string) string {
	if text == "" {
		return ""
	}
	return text + " "
}
