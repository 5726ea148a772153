// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/test/vm"
)

// supportPage is the page whose table says what works on which kernel.
const supportPage = "docs/support.md"

// own stands for the machine's own kernel, on which the tier runs without a virtual machine.
const own = "own"

// capability is what users want, and the tests that show it: "PACKAGE TEST", the package below internal/. Tests below
// count with it.
type capability struct {
	name  string
	tests []string
}

// capabilities are the rows of the table, in its order.
var capabilities = []capability{
	{"find a stale subPath bind", []string{"faults/subpath TestUpdateMakesBindStale", "cli/node TestScanFindsWhatIsStale"}},
	{"repair it when its container cannot start", []string{"processor/subpath TestHeals"}},
	{"repair it before the next start, as soon as its source changes", []string{"sentinel TestAutomaticRepairsBeforeNextStart"}},
	{"find a dead FUSE volume", []string{"linux/probe TestLostServers", "sentinel TestObserveReportsDeadVolume"}},
	{"find a volume that hangs, without hanging", []string{"faults/volume TestHung", "cli/node TestProbeDoesNotHang"}},
	{"find a volume whose source was deleted or moved", []string{"linux/probe TestDeletedAndMoved"}},
	{"confirm that a volume is healthy", []string{"linux/probe TestStates", "faults/volume TestHealthy"}},
	{"give a volume back to running containers, when its driver has brought it back", []string{"processor/volume TestHeals"}},
	{"the same by the sentinel, without a Diagnosis", []string{"sentinel TestAutomaticRepairsAfterDriverRestart"}},
	{"replace a mount with no moment in which readers miss it", []string{"linux/mount TestReplaceRacesReader", "linux/mount TestReplaceDeadFUSEUnderReader"}},
	{"unmount and replace no mount but the one that was meant, in a race", []string{
		"linux/mount TestUnmountNeverRemovesAnotherMount", "linux/mount TestReplaceNeverReplacesAnotherMount",
	}},
	{"abort a FUSE connection that hangs", []string{"processor/volume TestAbortsWhenAsked"}},
	{"name who holds a device", []string{"cli/node TestHoldersOfACopy", "processor/device TestFindsWhoHoldsADevice"}},
	{"release a device that is held", []string{"processor/device TestReleases"}},
	{"find mount namespaces that no process is in", []string{"linux/mountns TestScannerFindsEveryNamespace"}},
	{"release a device that only such a namespace holds", []string{"faults/device TestOtherNamespaces"}},
	{"unmap krbd devices that are idle", []string{"processor/device TestUnmapsWhatIsIdle"}},
	{"clear directories of pods that are gone", []string{"processor/orphan TestHeals"}},
	{"do nothing while no mount changes", []string{"linux/mountns TestListerAllocatesNothingWhereNothingChanges"}},
}

// shows lists the tests of the package in the folder that rows of the table rest on.
func shows(dir string) (tests []string) {
	for _, c := range capabilities {
		for _, t := range c.tests {
			if name, ok := strings.CutPrefix(t, strings.TrimPrefix(dir, "internal/")+" "); ok && !slices.Contains(tests, name) {
				tests = append(tests, name)
			}
		}
	}
	return tests
}

// outcome is how a test ended that has none below it.
type outcome struct {
	action string // pass, fail, skip
	lacks  string // of one that was skipped: what the kernel lacks
}

// matrixOf returns each row's cell for each column. A test that did not run on a kernel is an error: the table would
// state an unobserved result.
func matrixOf(columns []string, seen map[string]map[string]outcome) (map[string][]string, error) {
	cells := map[string][]string{}
	for _, c := range capabilities {
		for _, column := range columns {
			cell, err := c.on(seen[column])
			if err != nil {
				return nil, fmt.Errorf("%s, kernel %s: %w", c.name, column, err)
			}
			cells[c.name] = append(cells[c.name], cell)
		}
	}
	return cells, nil
}

// on says what a kernel's tests have shown of the capability.
func (c capability) on(seen map[string]outcome) (string, error) {
	var lacks []string
	passed := false
	for _, t := range c.tests {
		ran := false
		for name, o := range seen {
			if name != t && !strings.HasPrefix(name, t+"/") {
				continue
			}
			ran = true
			switch o.action {
			case "pass":
				passed = true
			case "skip":
				lacks = append(lacks, o.lacks)
			default:
				return "", fmt.Errorf("%s: %s", name, o.action)
			}
		}
		if !ran {
			return "", fmt.Errorf("%s did not run", t)
		}
	}
	slices.Sort(lacks)
	missing := strings.Join(slices.Compact(lacks), "; ")
	switch {
	case missing == "":
		return "yes", nil
	case passed:
		return "in part: lacks " + missing, nil
	}
	return "no: lacks " + missing, nil
}

// supportTable is the table of the page.
func supportTable(columns []string, cells map[string][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | Linux %s |\n|---|%s\n", strings.Join(columns, " | Linux "), strings.Repeat("---|", len(columns)))
	for _, c := range capabilities {
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, strings.Join(cells[c.name], " | "))
	}
	return b.String()
}

// tableOf cuts the table out of the page.
func tableOf(page []byte) (before, table, after []byte) {
	start := bytes.Index(page, []byte("\n| |"))
	if start < 0 {
		return page, nil, nil
	}
	start++
	length := bytes.Index(page[start:], []byte("|\n\n"))
	if length < 0 {
		return page[:start], page[start:], nil
	}
	end := start + length + 2
	return page[:start], page[start:end], page[end:]
}

// readTable returns the columns and cells of a table that supportTable made.
func readTable(table []byte) (columns []string, cells map[string][]string) {
	cells = map[string][]string{}
	for l := range strings.Lines(string(table)) {
		f := strings.Split(strings.Trim(strings.TrimSpace(l), "|"), " | ")
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		switch {
		case columns == nil:
			for _, c := range f[1:] {
				columns = append(columns, strings.TrimPrefix(c, "Linux "))
			}
		case !strings.HasPrefix(l, "|---"):
			cells[f[0]] = f[1:]
		}
	}
	return columns, cells
}

// checkSupport puts what was seen into the columns of the page and fails if its table changes. The machine's own kernel
// may be any, and have no column.
func checkSupport(page []byte, columns []string, cells map[string][]string) error {
	_, table, _ := tableOf(page)
	known, rows := readTable(table)
	for i, column := range columns {
		at := slices.Index(known, column)
		if at < 0 && slices.Contains(vm.Kernels, column) {
			return fmt.Errorf("%s has no column for Linux %s: run make support", supportPage, column)
		}
		for _, c := range capabilities {
			row := make([]string, len(known))
			copy(row, rows[c.name])
			if at >= 0 {
				row[at] = cells[c.name][i]
			}
			rows[c.name] = row
		}
	}
	if seen := supportTable(known, rows); seen != string(table) {
		return fmt.Errorf("%s is not what was seen; make support writes:\n%s", supportPage, seen)
	}
	return nil
}
