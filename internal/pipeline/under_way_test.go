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

// TestUnderway has other programs see a repair from its first action to its end, and none that was only planned or waits.
func TestUnderway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	underway := func() int {
		t.Helper()
		all, err := Underway(dir)
		must(t, err)
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
	if seen = append(seen, underway()); len(seen) != 3 || seen[0] != 0 || seen[1] != 1 || seen[2] != 0 {
		t.Errorf("seen before it, after it and at the end: %v", seen)
	}
}

// TestPlanned reads a plan that was not carried out, with what only its journal has.
func TestPlanned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	planned := newJob(t, nil, &unmounter{kernel: newKernel(7)})
	planned.PlanOnly = true
	mustRun(t, newRunner(t, dir), planned)
	actions, err := Planned(dir, planned.Request.Diagnosis.UID)
	if err != nil || len(actions) != 1 || actions[0].Mount == nil || actions[0].Mount.ID != 7 {
		t.Errorf("planned %+v, %v", actions, err)
	}
	if actions, err := Planned(dir, "none"); err == nil {
		t.Errorf("planned without a journal: %+v", actions)
	}
}

// TestUnderwayElsewhere has journals that this release cannot read: their plans are not known.
func TestUnderwayElsewhere(t *testing.T) {
	t.Parallel()
	line := func(text string) string { return checksum([]byte(text)) + text + "\n" }
	begin := `{"seq":1,"kind":"begin","begin":{"version":5,"uid":"u"}}`
	end := `{"seq":2,"kind":"end","unheard":1}`
	for name, c := range map[string]struct {
		content string
		want    int
	}{
		"another format":                         {line(begin), 1},
		"another format, at its end":             {line(begin) + line(end), 0},
		"without checksums":                      {begin + "\n", 1},
		"without checksums, at its end":          {begin + "\n" + end + "\n", 0},
		"another field":                          {line(`{"seq":1,"kind":"begin","unheard":1}`), 1},
		"no journal":                             {"no journal\n", 1},
		"an end in the middle, and then another": {line(begin) + line(end) + line(begin), 1},
		"nothing yet":                            {"", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, journalDir), 0o700),
				os.WriteFile(filepath.Join(dir, journalName("uid-2")), []byte(c.content), 0o600)); err != nil {
				t.Fatal(err)
			}
			all, err := Underway(dir)
			if err != nil || len(all) != c.want {
				t.Fatalf("under way %+v, %v, want %d", all, err, c.want)
			}
			for _, r := range all {
				if r.UID != "uid-2" || !r.Unknown || len(r.Actions) != 0 {
					t.Errorf("repair %+v, want one that is not known", r)
				}
			}
		})
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
