// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCapabilitiesRestOnTestsThatExist: of the kernel tier, which is what runs on other kernels.
func TestCapabilitiesRestOnTestsThatExist(t *testing.T) {
	t.Parallel()
	found, err := findTests("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range capabilities {
		if len(c.tests) == 0 {
			t.Errorf("%s: no test shows it", c.name)
		}
		for _, test := range c.tests {
			dir, name, _ := strings.Cut(test, " ")
			name, _, _ = strings.Cut(name, "/")
			if !slices.ContainsFunc(found, func(f testFile) bool {
				return f.dir == "./internal/"+dir && f.tag == "kernel" && slices.Contains(f.tests, name)
			}) {
				t.Errorf("%s: no test %s in the kernel tier", c.name, test)
			}
		}
	}
}

func TestCellSaysWhatWasSeen(t *testing.T) {
	t.Parallel()
	c := capability{"fly", []string{"a TestA", "b TestB"}}
	lacks := outcome{"skip", "wings (Linux 9.1)"}
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
	} {
		got, err := c.on(tc.seen)
		if got != tc.want || (err == nil) != (tc.fail == "") || err != nil && err.Error() != tc.fail {
			t.Errorf("%s: %q, %v, want %q, %q", name, got, err, tc.want, tc.fail)
		}
	}
}

func TestPageIsHeldToWhatWasSeen(t *testing.T) {
	t.Parallel()
	columns := []string{"5.10", "6.1"}
	cells := map[string][]string{}
	for _, c := range capabilities {
		cells[c.name] = []string{"no: lacks wings (Linux 9.1)", "yes"}
	}
	page := slices.Concat([]byte("# Page\n\n"), []byte(supportTable(columns, cells)), []byte("\nMore.\n"))
	before, table, after := tableOf(page)
	if string(before) != "# Page\n\n" || string(table) != supportTable(columns, cells) || string(after) != "\nMore.\n" {
		t.Errorf("page falls into %q, %q, %q", before, table, after)
	}
	gotColumns, gotCells := readTable(table)
	if diff := cmp.Diff(columns, gotColumns) + cmp.Diff(cells, gotCells); diff != "" {
		t.Errorf("table that was read (-written +read):\n%s", diff)
	}
	if err := checkSupport(page, columns, cells); err != nil {
		t.Error(err)
	}
	if err := checkSupport(page, []string{"6.99"}, cells); err != nil {
		t.Errorf("own kernel that has no column: %v", err)
	}
	if err := checkSupport(page, []string{"6.12"}, cells); err == nil {
		t.Error("kernel of the matrix that has no column: no error")
	}
	for name, wrong := range map[string][]byte{
		"a cell":          bytes.Replace(page, []byte("| yes |"), []byte("| no: lacks wings (Linux 9.1) |"), 1),
		"a row is gone":   bytes.Replace(page, []byte("| "+capabilities[0].name+" |"), []byte("| something else |"), 1),
		"a row too many":  bytes.Replace(page, []byte("\n\nMore"), []byte("\n| fly | yes | yes |\n\nMore"), 1),
		"a column is cut": bytes.ReplaceAll(page, []byte(" | yes |"), []byte(" |")),
	} {
		if err := checkSupport(wrong, columns, cells); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
