// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package demo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/program"
)

// demoLeftovers is what a demo could leave behind in the directory for temporary files: mounts and files of the names
// it uses.
func demoLeftovers(t *testing.T) []string {
	t.Helper()
	table, err := mountns.Table(0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range table.Under(os.TempDir()) {
		if m.Point == os.TempDir() || strings.Contains(m.Point, podUID) || strings.Contains(m.Point, volumePodUID) || strings.HasSuffix(m.Point, subPath) {
			names = append(names, m.Point)
		}
	}
	for _, name := range []string{"kubelet", "rootfs", "data", "kubediag-subpath-remount-diagnosis"} {
		if info, err := os.Lstat(filepath.Join(os.TempDir(), name)); err == nil && info.IsDir() {
			names = append(names, name)
		}
	}
	return names
}

// runDemo runs the built demo and returns what it printed. It must leave nothing behind.
func runDemo(t *testing.T, attr *sys.ProcAttr, args ...string) string {
	t.Helper()
	name := program.Build(t, "cmd/kubediag")
	before := demoLeftovers(t)
	var out bytes.Buffer
	cmd := exec.Command(name, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "COLUMNS=80")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &out, &out, attr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if after := demoLeftovers(t); !slices.Equal(before, after) {
		t.Errorf("the demo left something behind:\n%q\n%q", before, after)
	}
	return out.String()
}

// storyLines are beginnings of all lines of the story.
var storyLines = []string{
	"Act 1: ",
	`✓ 1 A pod of core2 reads "rotate 7"`,
	"✗ 2 The ConfigMap changes. Restarts fail: no such file or directory (",
	"  3 Diagnosis finds StaleSubPath, plans Unmount, RemoveContainerRecord (",
	"    the root of the mount is deleted; lost: the restart count that is shown",
	`✓ 4 Done, proven in the mount table. The container reads "rotate 14" (`,
	"Act 2: ",
	"✓ 1 Pod trainer-0 (process ",
	"✗ 2 Daemon killed. Reads fail: transport endpoint is not connected (",
	"  3 The driver mounts the volume again, and the pod's mounts stay dead (",
	"  4 Diagnosis finds DisconnectedFUSE, plans Replace, Replace (",
	"    the connection to the daemon of the file system is gone; lost: nothing",
	"✓ 5 Replaced without a restart: process ",
	"Two mounts of pods broke; kubediag found out why, healed both, and proved it.",
	"Real mounts, and nothing is left. Next: sudo ",
}

var (
	isStep  = regexp.MustCompile(`^[✓✗ ] \d `)
	hasTime = regexp.MustCompile(`\([\d.]+ m?s\)$`)
)

func TestDemoIsAStoryInTwoActs(t *testing.T) {
	for name, attr := range map[string]*sys.ProcAttr{"root": nil, "root of a user namespace": sys.PrivateMounts(sys.Clone{User: true})} {
		t.Run(name, func(t *testing.T) {
			out := runDemo(t, attr)
			lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			if len(lines) != len(storyLines) {
				t.Fatalf("the story has %d lines, want %d:\n%s", len(lines), len(storyLines), out)
			}
			program := strings.TrimSuffix(strings.TrimPrefix(lines[len(lines)-1], storyLines[len(lines)-1]), " scan")
			for i, line := range lines {
				if !strings.HasPrefix(line, storyLines[i]) {
					t.Errorf("line %d is %q, and does not begin with %q", i+1, line, storyLines[i])
				}
				short := strings.Replace(line, program, "bin/kubediag", 1)
				if strings.TrimRight(short, " ") != short || utf8.RuneCountInString(short) > 80 {
					t.Errorf("line %d is longer than 80 columns or ends with blanks: %q", i+1, line)
				}
				if isStep.MatchString(line) != hasTime.MatchString(line) {
					t.Errorf("line %d is a step without its time, or has a time and is no step: %q", i+1, line)
				}
			}
			first := regexp.MustCompile(`\(process (\d+)\) reads "epoch 41"`).FindStringSubmatch(out)
			last := regexp.MustCompile(`process (\d+) reads "epoch 42"`).FindStringSubmatch(out)
			if first == nil || last == nil || first[1] != last[1] {
				t.Errorf("the container that reads the new content is another process: %q, %q", first, last)
			}
		})
	}
}

func TestDemoWritesItsDiagnoses(t *testing.T) {
	out := runDemo(t, nil, "-o", "yaml")
	for _, want := range []string{
		"\n  name: subpath-remount-diagnosis\n", "\n  name: volume-diagnosis\n",
		"\n  phase: Succeeded\n", "\n  outcome: Healed\n", "\n    nodeIndex: 3\n    pathIndex: 0\n",
		"message: Diagnosis is completed", "message: Diagnosis is accepted by agent on node my-node",
		"collector.kubernetes.pod.detail: ", "collector.system.mountinfo: ",
		"diagnoser.kubernetes.subpath_remount.result: pod met a bug of subpath-remounting",
		"diagnoser.kubernetes.subpath_remount.bug_link: https://github.com/kubernetes/kubernetes/issues/68211",
		"diagnoser.kubernetes.subpath_remount.original_source_path: ",
		"diagnoser.kubernetes.subpath_remount.original_destination_path: ",
		"recover.kubernetes.subpath_remount.result: Succeesfully umount ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	if !strings.HasPrefix(out, "---\n") || strings.Count(out, "\n  outcome: Healed\n") != 2 {
		t.Errorf("the output is not two Diagnoses that healed:\n%s", out)
	}
}

func TestDemoThatIsInterruptedSaysSoAndLeavesNothing(t *testing.T) {
	name := program.Build(t, "cmd/kubediag")
	before := demoLeftovers(t)
	var stderr bytes.Buffer
	cmd := exec.Command(name, "demo")
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("an interrupted demo says that it succeeded")
	}
	if got := stderr.String(); got != "kubediag: demo: interrupted\n" {
		t.Errorf("an interrupted demo says %q", got)
	}
	if after := demoLeftovers(t); !slices.Equal(before, after) {
		t.Errorf("the demo left something behind:\n%q\n%q", before, after)
	}
}
