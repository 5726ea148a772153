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
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &out, &out, attr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if after := demoLeftovers(t); !slices.Equal(before, after) {
		t.Errorf("the demo left something behind:\n%q\n%q", before, after)
	}
	return out.String()
}

// storyLines are beginnings of lines of the story, in order.
var storyLines = []string{
	"Act 1: ",
	`✓ 1 Pod default/core2-5b89896b96-d44xl runs and reads "rotate 7"`,
	"✗ 2 The ConfigMap changes",
	`    bind "/rootfs/etc/logrotate.d/nginx.log": no such file or directory`,
	"  3 Diagnosis subpath-remount-diagnosis finds StaleSubPath:",
	"    plan: Unmount /kubelet/pods/UID/volume-subpaths/logrotateconf/debian/0; lost: nothing",
	"✓ 4 Replaced, and proven in the mount table.",
	"Act 2: ",
	"✓ 1 Pod default/trainer-0 runs as process ",
	"✗ 2 The daemon of the volume is killed.",
	"    open /data/state: transport endpoint is not connected",
	"  3 The driver mounts the volume again",
	"  4 Diagnosis volume-diagnosis finds DisconnectedFUSE:",
	"    plan: Replace /kubelet/pods/UID/volumes/kubernetes.io~csi/pvc-model/mount; lost: nothing",
	"    plan: Replace /data; lost: nothing",
	"✓ 5 Replaced under the running container. Process ",
	"Next:",
	"  sudo ",
}

func TestDemoIsAStoryInTwoActs(t *testing.T) {
	for name, attr := range map[string]*sys.ProcAttr{"root": nil, "root of a user namespace": sys.PrivateMounts(sys.Clone{User: true})} {
		t.Run(name, func(t *testing.T) {
			out := runDemo(t, attr)
			rest := "\n" + out
			for _, want := range storyLines {
				at := strings.Index(rest, "\n"+want)
				if at < 0 {
					t.Fatalf("no line begins with %q behind the ones before:\n%s", want, out)
				}
				rest = rest[at+1:]
			}
			if lines := strings.Count(out, "\n"); lines > 24 {
				t.Errorf("the story has %d lines, more than a screen", lines)
			}
			for line := range strings.Lines(out) {
				if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
					t.Errorf("a line ends with blanks: %q", line)
				}
			}
			first := regexp.MustCompile(`runs as process (\d+)`).FindStringSubmatch(out)
			last := regexp.MustCompile(`Process (\d+) never stopped, and reads "epoch 42"`).FindStringSubmatch(out)
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
