// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCapabilitiesRestOnTestsThatExist: of the kernel tier, the only tier that runs on other kernels.
func TestCapabilitiesRestOnTestsThatExist(t *testing.T) {
	t.Parallel()
	found, err := findTests("../..")
	must(t, err)
	for _, c := range slices.Concat(sheets()[0].rows, sheets()[1].rows) {
		if len(c.tests) == 0 {
			t.Errorf("%s: no test shows it", c.name)
		}
		for _, test := range c.tests {
			dir, name, _ := strings.Cut(test, " ")
			name, _, _ = strings.Cut(name, "/")
			if !slices.ContainsFunc(found, func(f testFile) bool {
				return (f.dir == "./internal/"+dir && f.tag == "kernel" || dir == scenesDir && f.dir == "./"+dir && f.tag == sceneTag) &&
					slices.Contains(f.tests, name)
			}) {
				t.Errorf("%s: no test %s in the kernel tier, nor in the scenes", c.name, test)
			}
		}
	}
}

func TestCellSaysWhatWasSeen(t *testing.T) {
	t.Parallel()
	c := capability{"fly", []string{"a TestA", "b TestB", scenesDir + " TestC"}}
	lacks, elsewhere := outcome{action: "skip", lacks: "wings (Linux 9.1)"}, outcome{action: "skip", reason: "no sky"}
	for name, tc := range map[string]struct {
		seen       map[string]outcome
		want, fail string
	}{
		"all passed":      {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestB/x": {action: "pass"}}, want: "yes"},
		"all skipped":     {seen: map[string]outcome{"a TestA": lacks, "b TestB": lacks}, want: "no: lacks wings (Linux 9.1)"},
		"one skipped":     {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestB/x": lacks}, want: "in part: lacks wings (Linux 9.1)"},
		"one below fails": {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestB/x": {action: "fail"}, "b TestB/y": {action: "pass"}}, fail: "b TestB/x: fail"},
		"one did not run": {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestBird": {action: "pass"}}, fail: "b TestB did not run"},
		"nothing ran":     {fail: "a TestA did not run"},
		"none tested":     {seen: map[string]outcome{"a TestA": elsewhere, "b TestB": elsewhere}, want: "not tested: no sky"},
		"one not tested":  {seen: map[string]outcome{"a TestA": elsewhere, "b TestB/x": lacks, "b TestB/y": {action: "pass"}}, want: "in part: lacks wings (Linux 9.1); not tested: no sky"},
		"a scene skipped": {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestB": {action: "pass"}, scenesDir + " TestC": lacks}, want: "in part: lacks wings (Linux 9.1)"},
		"a scene fails":   {seen: map[string]outcome{"a TestA": {action: "pass"}, "b TestB": {action: "pass"}, scenesDir + " TestC": {action: "fail"}}, fail: scenesDir + " TestC: fail"},
	} {
		got, err := c.on(tc.seen)
		if got != tc.want || (err == nil) != (tc.fail == "") || err != nil && err.Error() != tc.fail {
			t.Errorf("%s: %q, %v, want %q, %q", name, got, err, tc.want, tc.fail)
		}
	}
}

func TestPageIsHeldToWhatWasSeen(t *testing.T) {
	t.Parallel()
	for _, s := range sheets() {
		t.Run(s.head, func(t *testing.T) { holdPage(t, s) })
	}
}

func holdPage(t *testing.T, s sheet) {
	t.Helper()
	columns := []string{"5.10", "6.1"}
	cells := map[string][]string{}
	for _, c := range s.rows {
		cells[c.name] = []string{"no: lacks wings (Linux 9.1)", "yes"}
	}
	page := slices.Concat([]byte("# Page\n\n"), []byte(s.table(columns, cells)), []byte("\nMore.\n"))
	before, table, after := s.cut(page)
	if string(before) != "# Page\n\n" || string(table) != s.table(columns, cells) || string(after) != "\nMore.\n" {
		t.Errorf("page falls into %q, %q, %q", before, table, after)
	}
	gotColumns, gotCells := readTable(table)
	if diff := cmp.Diff(columns, gotColumns) + cmp.Diff(cells, gotCells); diff != "" {
		t.Errorf("table that was read (-written +read):\n%s", diff)
	}
	if err := s.check(page, columns, cells); err != nil {
		t.Error(err)
	}
	if err := s.check(page, []string{"6.99"}, cells); err != nil {
		t.Errorf("own kernel that has no column: %v", err)
	}
	if err := s.check(page, []string{"6.12"}, cells); err == nil {
		t.Error("kernel of the matrix that has no column: no error")
	}
	for name, wrong := range map[string][]byte{
		"a cell":          bytes.Replace(page, []byte("| yes |"), []byte("| no: lacks wings (Linux 9.1) |"), 1),
		"a row is gone":   bytes.Replace(page, []byte("| "+s.rows[0].name+" |"), []byte("| something else |"), 1),
		"a row too many":  bytes.Replace(page, []byte("\n\nMore"), []byte("\n| fly | yes | yes |\n\nMore"), 1),
		"a column is cut": bytes.ReplaceAll(page, []byte(" | yes |"), []byte(" |")),
	} {
		if err := s.check(wrong, columns, cells); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTablesAreWrittenAndCompared with the results of the kernels, but only if all tests have passed.
func TestTablesAreWrittenAndCompared(t *testing.T) {
	const before = "# Page\n\n| capability | Linux 5.10 |\n|---|---|\n\nWords.\n\n"
	module(t, map[string]string{supportPage: before})
	kernel := &column{kernel: "5.10", name: "5.10", report: newReport(io.Discard)}
	for _, s := range sheets() {
		for _, c := range s.rows {
			for _, test := range c.tests {
				kernel.report.ended[test] = outcome{action: "pass"}
			}
		}
	}
	delete(kernel.report.ended, scenesDir+" TestHeldRBD")
	scenes := &column{name: "scenes", report: newReport(io.Discard)}
	scenes.report.ended[scenesDir+" TestHeldRBD/Linux_5.10"] = outcome{action: "skip", lacks: "wings"}
	kernel.report.ended["linux/sys TestFeatures/openat2"] = outcome{action: "skip", lacks: "openat2 (Linux 5.6)"}
	columns, page := []*column{kernel, scenes}, func() string {
		t.Helper()
		text, err := os.ReadFile(supportPage)
		must(t, err)
		return string(text)
	}
	var out strings.Builder
	if err := support(&out, columns, false, true); err != nil || page() != before || !strings.Contains(out.String(), "| openat2 (5.6) | no |\n") {
		t.Errorf("with a failure: %v, printed\n%s\nand the page is\n%s", err, out.String(), page())
	}
	if err := support(&out, columns, true, false); err == nil {
		t.Error("a page that differs: no error")
	}
	must(t, support(&out, columns, true, true))
	for _, want := range []string{"| unmap krbd devices that are idle | in part: lacks wings |\n", "|\n\nWords.\n\n", "| openat2 (5.6) | no |\n"} {
		if !strings.Contains(page(), want) {
			t.Errorf("%q is missing in\n%s", want, page())
		}
	}
	if err := support(&out, columns, true, false); err != nil {
		t.Errorf("the page as it was written: %v", err)
	}
	kernel.report.ended["linux/sys TestFeatures/openat2"] = outcome{action: "fail"}
	if err := support(&out, columns, true, false); err == nil {
		t.Error("a row that rests on a failure: no error")
	}
	out.Reset()
	if err := support(&out, columns, false, false); err != nil || !strings.Contains(out.String(), "| openat2 (5.6) | linux/sys TestFeatures/openat2: fail |\n") {
		t.Errorf("a row whose test failed: %v, printed\n%s", err, out.String())
	}
}
