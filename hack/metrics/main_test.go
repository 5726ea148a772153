// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/metric"
)

const root = "../.."

// The files are in the tree as they are written.
func TestFilesAreCurrent(t *testing.T) {
	t.Parallel()
	all, err := faultFiles(root, fault.Known())
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range files {
		if all[name], err = make(root); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range all {
		got, err := os.ReadFile(root + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s is not current: run make generate (-want +got):\n%s", name, diff)
		}
	}
}

// Both forms of the rules have the same groups.
func TestRuleObject(t *testing.T) {
	t.Parallel()
	var plain map[string]any
	var object struct {
		APIVersion, Kind string
		Spec             map[string]any
	}
	for name, into := range map[string]any{rules: &plain, ruleObject: &object} {
		text, err := os.ReadFile(root + "/" + name)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(plain, object.Spec); diff != "" || object.Kind != "PrometheusRule" {
		t.Errorf("%s %s (-plain +object):\n%s", object.APIVersion, object.Kind, diff)
	}
}

// A name is declared once, and each metric and label has words.
func TestDeclarations(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, declared := range tables {
		for _, d := range declared() {
			if seen[d.Name] || d.Help == "" {
				t.Errorf("%s is declared twice, or has no help", d.Name)
			}
			seen[d.Name] = true
			if (d.Kind == metric.Histogram) != (len(d.Buckets) > 0) {
				t.Errorf("%s: a %s with %d buckets", d.Name, d.Kind, len(d.Buckets))
			}
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	opened := metric.Declaration{
		Name: "kubediag_doors_opened_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "side", Values: "`left`, `right`"}},
		Help: "Doors that were opened.", More: "[Doors](doors.md)",
	}
	open := metric.Declaration{Name: "kubediag_doors_open", Kind: metric.Gauge, Help: "Doors that are open."}
	want := strings.Join([]string{
		"| metric | type | labels | meaning |",
		"|---|---|---|---|",
		"| `kubediag_doors_open` | gauge | | Doors that are open |",
		"| `kubediag_doors_opened_total` | counter | `side` (`left`, `right`) | Doors that were opened. [Doors](doors.md) |",
		"",
	}, "\n")
	if diff := cmp.Diff(want, table([]metric.Declaration{opened, open})); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
