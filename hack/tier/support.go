// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/vm"
)

// supportPage is the page whose tables list the features that work on each kernel.
const supportPage = "docs/support.md"

// own stands for the machine's own kernel, on which the tier runs without a virtual machine.
const own = "own"

// scenesDir is a package of tests that start virtual machines by themselves. Each has one test below it for each kernel.
const scenesDir = "test/vm/scenes"

// capability is a row: a feature for users, and the tests that show it: "PACKAGE TEST", the package below internal/. Tests
// below count with it. A test of scenesDir counts if it ran.
type capability struct {
	name  string
	tests []string
}

// sheet is a table of the page.
type sheet struct {
	head string // of its first column
	rows []capability
}

// sheets are the tables of the page, in its order.
func sheets() []sheet {
	features := sheet{head: featureHead}
	for _, f := range sys.Features() {
		test := "linux/sys TestFeatures/" + strings.NewReplacer(" ", "_", "/", "-").Replace(f.Name)
		features.rows = append(features.rows, capability{f.Name + " (" + f.Kernel + ")", []string{test}})
	}
	return []sheet{{"capability", capabilities}, features}
}

// featureHead heads the features, each with the version of the kernel that brought it.
const featureHead = "kernel feature (since)"

// capabilities are the rows of the first table, in its order.
var capabilities = []capability{
	{"find a stale subPath bind", []string{"faults/subpath TestUpdateMakesBindStale", "cli/node TestScanFindsWhatIsStale"}},
	{"repair it when its container cannot start", []string{"processor/subpath TestHeals"}},
	{"repair it before the next start, as soon as its source changes", []string{"sentinel TestAutomaticRepairsBeforeNextStart"}},
	{"find a dead FUSE volume", []string{"linux/probe TestLostServers", "sentinel TestObserveReportsDeadVolume"}},
	{"find a volume that hangs, without hanging", []string{"faults/volume TestHung", "cli/node TestProbeDoesNotHang"}},
	{"find a volume whose source was deleted or moved", []string{"linux/probe TestDeletedAndMoved"}},
	{"find a bind source that is missing, or not of the wanted type", []string{"faults/subpath TestBadSources"}},
	{"find a stale handle of NFS", []string{"faults/volume TestNFSExportRemovedAndBack", "faults/volume TestNFSDirectoryReplacedOnTheServer"}},
	{"confirm that a volume is healthy", []string{"linux/probe TestStates", "faults/volume TestHealthy"}},
	{"give a volume back to running containers, when its driver has brought it back", []string{"processor/volume TestHeals"}},
	{"the same by the sentinel, without a Diagnosis", []string{"sentinel TestAutomaticRepairsAfterDriverRestart"}},
	{"replace a mount with no moment in which readers miss it", []string{"linux/mount TestReplaceRacesReader", "linux/mount TestReplaceDeadFUSEUnderReader"}},
	{"unmount and replace no mount but the one that was meant, in a race", []string{
		"linux/mount TestUnmountNeverRemovesAnotherMount", "linux/mount TestReplaceNeverReplacesAnotherMount",
	}},
	{"abort a FUSE connection that hangs, and no other", []string{
		"processor/volume TestAbortsWhenAsked", "faults/volume TestAbortOfWhatHasGone", "faults/volume TestAbortOfWhatHasGoneMeanwhile",
	}},
	{"name the daemon of a FUSE volume", []string{"linux/fuse TestStoppedServer/named"}},
	{"name who holds a device", []string{"cli/node TestHoldersOfACopy", "processor/device TestFindsWhoHoldsADevice"}},
	{"release a device that is held", []string{"processor/device TestReleases"}},
	{"detach a device", []string{"linux/blockdev TestDetachLoop", "linux/blockdev TestDetachLoopThatIsAnother"}},
	{"find mount namespaces that no process is in", []string{"linux/mountns TestScannerFindsEveryNamespace"}},
	{"release a device that only such a namespace holds", []string{"linux/mountns TestScannerFindsEveryNamespace", "processor/device TestEveryHolding"}},
	{"unmap krbd devices that are idle", []string{"processor/device TestUnmapsWhatIsIdle", scenesDir + " TestHeldRBD"}},
	{"clear directories of pods that are gone", []string{"processor/orphan TestHeals"}},
	{"do nothing while no mount changes", []string{"linux/mountns TestListerAllocatesNothingWhereNothingChanges"}},
}

// shows lists the tests of the package in the folder that rows of the tables rest on.
func shows(dir string) (tests []string) {
	for _, s := range sheets() {
		for _, c := range s.rows {
			for _, t := range c.tests {
				name, ok := strings.CutPrefix(t, strings.TrimPrefix(dir, "internal/")+" ")
				name, _, _ = strings.Cut(name, "/")
				if ok && !slices.Contains(tests, name) {
					tests = append(tests, name)
				}
			}
		}
	}
	return tests
}

// outcome is how a test ended that has none below it.
type outcome struct {
	action string // pass, fail, skip
	// lacks and reason are of a skipped test: the feature that the kernel lacks, or else why it was skipped.
	lacks, reason string
}

// addScenes adds the outcomes of the scenes on each kernel.
func addScenes(seen map[string]map[string]outcome, scenes map[string]outcome) {
	for kernel, tests := range seen {
		for name, o := range scenes {
			if test, ok := strings.CutSuffix(name, "/Linux_"+kernel); ok {
				tests[test] = o
			}
		}
	}
}

// matrixOf returns each row's cell for each column. A test that failed, or did not run on a kernel, is an error, which
// stands in the cell as well: the table would state an unobserved result.
func (s sheet) matrixOf(columns []string, seen map[string]map[string]outcome) (map[string][]string, error) {
	cells := map[string][]string{}
	var errs []error
	for _, c := range s.rows {
		for _, column := range columns {
			cell, err := c.on(seen[column])
			if err != nil {
				cell = err.Error()
				errs = append(errs, fmt.Errorf("%s, kernel %s: %w", c.name, column, err))
			} else if s.head == featureHead {
				cell, _, _ = strings.Cut(cell, ":") // it would name the feature again
			}
			cells[c.name] = append(cells[c.name], cell)
		}
	}
	return cells, errors.Join(errs...)
}

// on is the result of a kernel's tests for the capability.
func (c capability) on(seen map[string]outcome) (string, error) {
	var lacks, others []string
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
				if o.lacks == "" {
					others = append(others, "not tested: "+o.reason)
				} else {
					lacks = append(lacks, o.lacks)
				}
			default:
				return "", fmt.Errorf("%s: %s", name, o.action)
			}
		}
		if !ran && !strings.HasPrefix(t, scenesDir+" ") {
			return "", fmt.Errorf("%s did not run", t)
		}
	}
	slices.Sort(lacks)
	slices.Sort(others)
	if len(lacks) > 0 {
		others = slices.Insert(others, 0, "lacks "+strings.Join(slices.Compact(lacks), "; "))
	}
	missing := strings.Join(slices.Compact(others), "; ")
	switch {
	case missing == "":
		return "yes", nil
	case passed:
		return "in part: " + missing, nil
	case len(lacks) == 0:
		return missing, nil
	}
	return "no: " + missing, nil
}

// table writes the table.
func (s sheet) table(columns []string, cells map[string][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s | Linux %s |\n|---|%s\n", s.head, strings.Join(columns, " | Linux "), strings.Repeat("---|", len(columns)))
	for _, c := range s.rows {
		fmt.Fprintf(&b, "| %s | %s |\n", c.name, strings.Join(cells[c.name], " | "))
	}
	return b.String()
}

// cut cuts the table out of the page.
func (s sheet) cut(page []byte) (before, table, after []byte) {
	start := bytes.Index(page, []byte("\n| "+s.head+" |"))
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

// readTable returns the columns and cells of a table that a sheet has written.
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

// check puts the results into the columns of the page and fails if its table changes. The machine's own kernel may be any,
// and have no column.
func (s sheet) check(page []byte, columns []string, cells map[string][]string) error {
	_, table, _ := s.cut(page)
	known, rows := readTable(table)
	for i, column := range columns {
		at := slices.Index(known, column)
		if at < 0 && slices.Contains(vm.Kernels, column) {
			return fmt.Errorf("%s has no column for Linux %s: run make support", supportPage, column)
		}
		for _, c := range s.rows {
			row := make([]string, len(known))
			copy(row, rows[c.name])
			if at >= 0 {
				row[at] = cells[c.name][i]
			}
			rows[c.name] = row
		}
	}
	if seen := s.table(known, rows); seen != string(table) {
		return fmt.Errorf("%s is not what was seen; make support writes:\n%s", supportPage, seen)
	}
	return nil
}
