// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/test/ceph/states"
	"kubediag.org/kubediag/test/program"
)

// margin is what the program may take in addition to waiting for a file system: much, as the machine may have other
// things to do.
const margin = 20 * time.Second

// patience is how long a file system may take to answer. One that does not hang is not to be taken for one that does
// because the machine is busy; and where there is no answer, half of it must be left once the question is put.
func patience(s states.State) time.Duration {
	if s.Life == states.Hung {
		return 1500 * time.Millisecond
	}
	return margin
}

// kubediag is the program that people run.
type kubediag string

// ran is how the program has ended.
type ran struct {
	status      int
	out, errors string
	took        time.Duration
}

func (p kubediag) run(t *testing.T, args ...string) ran {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), string(p), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+t.TempDir()) // where a scan is kept
	start := time.Now()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return ran{cmd.ProcessState.ExitCode(), out.String(), errs.String(), time.Since(start)}
}

// json runs a verb that is to say nothing but JSON.
func (p kubediag) json(t *testing.T, into any, args ...string) ran {
	t.Helper()
	r := p.run(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(r.out), into); err != nil || (r.errors != "") != (r.status == unseen) {
		t.Fatalf("%q: status %d, %v, %q, %q", args, r.status, err, r.out, r.errors)
	}
	return r
}

// unseen is the status of a scan that could not look everywhere. No container runtime belongs to the states.
const unseen = 2

// runtimeUnseen begins what such a scan says of a machine that has no container runtime.
const runtimeUnseen = "what the container runtime "

// status is that of a verb that has found a fault, or none.
func status(code fault.Code) int {
	if code == "" {
		return 0
	}
	return 1
}

// TestProgramNamesEveryState runs the program as people do on a node where a volume is in each state: twice, as what it
// says must not depend on that it has looked.
func TestProgramNamesEveryState(t *testing.T) {
	p := kubediag(program.Build(t, "cmd/kubediag"))
	each(t, func(t *testing.T, s states.State, place *states.Place) {
		for range 2 {
			before := place.Line(t)
			p.probes(t, s, place)
			if after := place.Line(t); after != before {
				t.Errorf("probe has changed %q to %q", before, after)
			}
			p.scans(t, s, place)
			// A staging path that answers is looked into: the kernel may learn by it that the folder is gone.
			if after := place.Line(t); after != before && (!s.Staged || strings.Replace(after, "//deleted", "", 1) != before) {
				t.Errorf("scan has changed %q to %q", before, after)
			}
		}
		p.speaks(t, s, place)
	})
}

// probes has the verb probe report what the mount by itself shows.
func (p kubediag) probes(t *testing.T, s states.State, place *states.Place) {
	t.Helper()
	want := s.Code
	if s.Met(t, place).Mute {
		want = ""
	}
	var report struct {
		SchemaVersion int
		Path          string
		Code          fault.Code
		Evidence      []string
	}
	r := p.json(t, &report, "probe", "--timeout", patience(s).String(), place.Target)
	if report.Code != want || r.status != status(want) || report.Path != place.Target || report.SchemaVersion != 1 {
		t.Errorf("probe: status %d, %+v, want %q", r.status, report, want)
	}
	if len(report.Evidence) == 0 && want != "" {
		t.Errorf("probe: %s without evidence", report.Code)
	}
	if r.took > patience(s)+margin {
		t.Errorf("probe took %s", r.took)
	}
}

// unseenPart is a part of the node that a scan could not look at.
type unseenPart struct{ What string }

// scans has the verb scan find the volume's fault, and no other.
func (p kubediag) scans(t *testing.T, s states.State, place *states.Place) {
	t.Helper()
	type found struct {
		Code     fault.Code
		Pod      struct{ UID string }
		Volume   string
		Mount    struct{ Point string }
		Evidence []string
	}
	var report struct {
		Faults []found
		Looked struct {
			Pods, Volumes     int
			VolumesIncomplete []string
			NotLookedAt       []unseenPart
		}
	}
	isOther := func(gap unseenPart) bool { return !strings.HasPrefix(gap.What, runtimeUnseen) }
	r := p.json(t, &report, scan(place)...)
	// Another test of the machine may have more mounts than a scan has room for, or a process that cannot be read yet.
	for deadline := time.Now().Add(time.Minute); slices.ContainsFunc(report.Looked.NotLookedAt, isOther); r = p.json(t, &report, scan(place)...) {
		if t.Logf("scan: not looked at: %v", report.Looked.NotLookedAt); time.Now().After(deadline) {
			t.Fatal("no scan looks at everything")
		}
		report.Faults, report.Looked.NotLookedAt = nil, nil
	}
	want := status(s.Code)
	if want == 0 && len(report.Looked.NotLookedAt) > 0 {
		want = unseen
	}
	if r.status != want || len(report.Faults) != status(s.Code) || report.Looked.Pods != 1 || report.Looked.Volumes != 1 ||
		len(report.Looked.VolumesIncomplete) > 0 {
		t.Errorf("scan: status %d, %+v, want %q", r.status, report, s.Code)
	}
	for _, f := range report.Faults {
		if f.Code != s.Code || f.Pod.UID != podUID || f.Volume != states.PersistentVolume || f.Mount.Point != place.Target ||
			len(f.Evidence) < 3 {
			t.Errorf("scan: %+v, want %q", f, s.Code)
		}
	}
	if r.took > probe.DefaultDeadline+margin {
		t.Errorf("scan took %s", r.took)
	}
}

// scan is the verb with what says where to look: where this test is, and not where a kubelet of the machine is.
func scan(place *states.Place) []string {
	return []string{"scan", "--kubelet-root", place.Root, "--kubelet-pid", strconv.Itoa(os.Getpid())}
}

// speaks has the verbs say the same to people, the cause first.
func (p kubediag) speaks(t *testing.T, s states.State, place *states.Place) {
	t.Helper()
	for _, args := range [][]string{
		{"probe", "--timeout", patience(s).String(), place.Target}, append(scan(place), "-v"),
	} {
		r := p.run(t, args...)
		t.Logf("%s\n%s", args[0], r.out)
		code, well := s.Code, map[string]string{"probe": "Alive\n", "scan": "nothing broken. "}[args[0]]
		if args[0] == "scan" && r.status == unseen && strings.Contains(r.errors, runtimeUnseen) {
			r.status, r.errors, well = 0, "", "nothing broken in what was looked at. "
		}
		if args[0] == "probe" && s.Met(t, place).Mute {
			code = ""
		}
		said := strings.Contains("\n"+r.out, "\n"+well) || args[0] == "scan" && strings.Contains(r.out, ": "+well)
		if code != "" {
			said = strings.Contains("\n"+r.out, map[string]string{"probe": "\n", "scan": "\n1. "}[args[0]]+string(code)+" (critical): ") && strings.Count(r.out, "\n  why ") == 1
		}
		if !said || r.status != status(code) || r.errors != "" {
			t.Errorf("%s: status %d, %q", args[0], r.status, r.errors)
		}
	}
}
