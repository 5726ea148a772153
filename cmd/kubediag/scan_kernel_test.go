// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// scanned has the fields that a program reads of a scan.
type scanned struct {
	Verdict struct {
		Clean                           bool
		Faults, Places, Safe, NotJudged int
		PodsNow                         []string
	}
	Faults []scannedFault
	Looked struct {
		Unproven []struct {
			Point, Why string
			Pod        fault.Pod
		}
	}
}

// scannedFault has the fields of a fault.
type scannedFault struct {
	Place    int
	Code     fault.Code
	Impact   fault.Impact
	Heal     fault.Heal
	Commands []fault.Command
	Pod      fault.Pod
	Mount    fault.Mount
}

// read reads the JSON that a verb has written.
func (r *result) read(t *testing.T, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), into); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
}

func (s *scenery) scan(t *testing.T) (found scanned) {
	t.Helper()
	callers[0].run(t, s.program, "", "scan", "-o", "json", "--kubelet-root="+s.Root).read(t, &found)
	return found
}

// TestCommandsCanBePasted has a shell run commands that are said to repair something and to lose nothing, the first of each
// fault on one node and the last on another: the fault of the command is healed then, and no other is worse.
func TestCommandsCanBePasted(t *testing.T) {
	for name, pick := range map[string]func([]fault.Command) fault.Command{
		"first": func(all []fault.Command) fault.Command { return all[0] },
		"last":  func(all []fault.Command) fault.Command { return all[len(all)-1] },
	} {
		t.Run(name, func(t *testing.T) { pasteCommands(t, pick) })
	}
}

func pasteCommands(t *testing.T, pick func([]fault.Command) fault.Command) {
	t.Helper()
	s := newScenery(t)
	before := s.scan(t)
	ran := map[fault.Code]bool{}
	for _, f := range before.Faults {
		repairs := slices.DeleteFunc(slices.Clone(f.Commands), func(c fault.Command) bool { return c.Effect != fault.EffectRepair })
		if len(repairs) == 0 {
			continue
		}
		ran[f.Code] = true
		line := pick(repairs).Line
		if out, err := s.typed(t, line, "y\n"); err != nil {
			t.Errorf("%s: %q: %v, %s", f.Code, line, err, out)
		}
	}
	left := []fault.Code{fault.DisconnectedFUSE}
	repaired := []fault.Code{fault.StaleSubPath, fault.HeldDevice}
	if sys.HasFUSEServer.Probe() == nil {
		repaired = append(repaired, fault.HungMount)
	} else { // nothing says which daemon is stopped
		left = append(left, fault.HungMount)
	}
	for _, code := range repaired {
		if !ran[code] {
			t.Errorf("%s has no command that repairs it", code)
		}
	}
	after := s.scan(t)
	for _, f := range after.Faults { // containers that others run on the machine may have copies
		if !slices.Contains(left, f.Code) || f.Heal != fault.HealPerson {
			t.Errorf("left is %+v, want those of %v", f, left)
		}
	}
	if before.Verdict.Safe != 2 || len(before.Verdict.PodsNow) != 1 || len(after.Faults) == 0 {
		t.Errorf("verdict %+v, after that %+v", before.Verdict, after.Verdict)
	}
}

// typed has a shell on a terminal run a line, with the program in its path, and answers its question.
func (s *scenery) typed(t *testing.T, line, answer string) (string, error) {
	t.Helper()
	return s.typedAfter(t, "", line, answer)
}

// typedAfter is typed where something is typed before the line runs.
func (s *scenery) typedAfter(t *testing.T, before, line, answer string) (string, error) {
	t.Helper()
	if before != "" {
		line = "until read -t 0; do :; done; " + line
	}
	cmd := exec.Command("script", "-qec", line, "/dev/null")
	cmd.Env = append(os.Environ(), programEnv+"=1", "XDG_RUNTIME_DIR="+callers[0].runtimeDir(t, s.program), "COLUMNS=200", "SHELL=/bin/bash",
		"PATH="+filepath.Dir(s.program)+":"+os.Getenv("PATH"))
	in, err := cmd.StdinPipe()
	must(t, err)
	read, write, err := os.Pipe()
	must(t, err)
	cmd.Stdout, cmd.Stderr = write, write
	must(t, cmd.Start())
	must(t, write.Close())
	_, err = in.Write([]byte(before))
	must(t, err)
	var out []byte
	for buffer, answered := make([]byte, 1<<16), false; ; {
		n, err := read.Read(buffer)
		if out = append(out, buffer[:n]...); err != nil {
			break
		}
		if !answered && strings.Contains(string(out), "[y/N] ") {
			_, err := in.Write([]byte(answer))
			must(t, err)
			answered = true
		}
	}
	must(t, read.Close())
	err = cmd.Wait()
	return strings.ReplaceAll(string(out), "\r", ""), err
}

// TestShowIsOfTheLastScan: faults that changed since do not matter.
func TestShowIsOfTheLastScan(t *testing.T) {
	s := newScenery(t)
	root := callers[0]
	text := root.run(t, s.program, "", "scan", "--kubelet-root="+s.Root)
	rows := regexp.MustCompile(`(?m)^(\d+)  ([A-Z]\w+) `).FindAllStringSubmatch(text.out, -1)
	for _, row := range rows {
		for _, name := range row[1:] {
			r := root.run(t, s.program, "", "show", name)
			if r.status != 0 || !strings.Contains(r.out, "\n"+row[1]+". "+row[2]+" (critical): ") || !strings.Contains(r.out, "\nBy hand, on this node:\n") {
				t.Errorf("show %s: %s", name, r)
			}
		}
	}
	if len(rows) < 4 {
		t.Errorf("%d rows in %s", len(rows), text)
	}
	if r := root.run(t, s.program, "", "show", "77"); r.status != 2 || !strings.Contains(r.errors, "has no such fault; its numbers are 1 to ") {
		t.Errorf("show 77: %s", r)
	}
	must(t, os.Chmod(filepath.Join(root.runtimeDir(t, s.program), "kubediag/last-scan.json"), 0o666))
	if r := root.run(t, s.program, "", "show", "1"); r.status != 3 || !strings.HasPrefix(r.errors, "kubediag: show: refused: ") {
		t.Errorf("show of what others may have written: %s", r)
	}
}

// TestWatchShowsAFaultComeAndGo as objects, one a line.
func TestWatchShowsAFaultComeAndGo(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "one"})
	point := s.Point(pod, "configmap", "app", 0)
	s.Stack(filepath.Join(s.Volume(pod, kubelettest.ConfigMap, "configmap"), "app.ini"), point)
	cmd, _ := callers[0].command(t, program(t), "", "scan", "--watch=1s", "-o", "json", "--only=StaleSubPath", "--kubelet-root="+s.Root)
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "two"})
	for _, want := range []string{"new", "gone"} {
		var got struct {
			Change string
			Fault  struct{ Code fault.Code }
		}
		if !lines.Scan() {
			t.Fatalf("no line, want %q", want)
		}
		must(t, json.Unmarshal(lines.Bytes(), &got))
		if got.Change != want || got.Fault.Code != fault.StaleSubPath {
			t.Errorf("%q, want a StaleSubPath that is %s", lines.Text(), want)
		}
		if want == "new" {
			must(t, systest.UnmountPath(point, true))
		}
	}
	must(t, cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the fault is gone it ends with %v", err)
	}
}
