// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/processor"
)

// TestUnderway has other programs see a repair from its plan to its end, and none that was only planned.
func TestUnderway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	underway := func() int {
		t.Helper()
		all, err := Underway(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.UID != "uid-1" || len(r.Actions) != 1 || r.Actions[0].Target != "/m/7" {
				t.Errorf("repair %+v", r)
			}
		}
		return len(all)
	}
	if got := underway(); got != 0 {
		t.Errorf("in an empty directory %d", got)
	}
	planned := newJob(t, nil, &unmounter{kernel: newKernel(7)})
	planned.Request.Diagnosis.UID, planned.PlanOnly = "uid-0", true
	mustRun(t, newRunner(t, dir), planned)
	var seen []int
	n := newKernel(7)
	j := newJob(t, nil, &unmounter{kernel: n, failVerify: func(int) error {
		seen = append(seen, underway())
		return nil
	}})
	j.BeforeRepair = func(context.Context, report, replan) error {
		seen = append(seen, underway())
		return nil
	}
	mustRun(t, newRunner(t, dir), j)
	if seen = append(seen, underway()); len(seen) != 3 || seen[0] != 1 || seen[1] != 1 || seen[2] != 0 {
		t.Errorf("seen before it, after it and at the end: %v", seen)
	}
	if err := os.WriteFile(filepath.Join(dir, journalName("uid-2")), []byte("no journal\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := underway(); got != 0 {
		t.Errorf("with a file that is no journal %d", got)
	}
}

// TestExclusive is asked for before the first action and given back after the last; nothing is done without it.
func TestExclusive(t *testing.T) {
	t.Parallel()
	n := newKernel(1, 2)
	held, taken := false, 0
	r := &unmounter{kernel: n, failApply: func(int) error {
		if !held {
			return errors.New("it is not held")
		}
		return nil
	}, failVerify: func(int) error {
		if held {
			return errors.New("it is still held")
		}
		return nil
	}}
	exclusive := func(context.Context) (func(), error) {
		if taken++; taken == 1 {
			return nil, processor.Stalled(errors.New("another has it"))
		}
		held = true
		return func() { held = false }, nil
	}
	runs := func() report {
		runner := newRunner(t, t.TempDir())
		runner.Exclusive = exclusive
		return mustRun(t, runner, newJob(t, nil, r))
	}
	report := runs()
	if report.Succeeded || r.applies != 0 || report.Operations[0].Message != "waiting for another program that repairs (create another Diagnosis when it has ended): another has it" {
		t.Errorf("while another has it: %+v", report)
	}
	report = runs()
	if !report.Succeeded || r.applies != 2 || taken != 2 {
		t.Errorf("afterwards: %+v", report)
	}
}
