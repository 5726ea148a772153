// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package demo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/mountns"
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
		if m.Point == os.TempDir() || strings.Contains(m.Point, podUID) || strings.HasSuffix(m.Point, subPath) {
			names = append(names, m.Point)
		}
	}
	for _, name := range []string{"kubelet", "rootfs", "kubediag"} {
		if info, err := os.Lstat(filepath.Join(os.TempDir(), name)); err == nil && info.IsDir() {
			names = append(names, name)
		}
	}
	return names
}

func TestDemoHealsARealMountAndLeavesNothing(t *testing.T) {
	name := program.Build(t, "cmd/kubediag")
	before := demoLeftovers(t)
	var out bytes.Buffer
	cmd := exec.Command(name, "demo")
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Logf("it took %v", time.Since(begin))
	for _, want := range []string{
		"//deleted", "no such file or directory", "plan    Unmount", "done    Unmount", newContent,
		"\n  phase: Succeeded\n", "\n  outcome: Healed\n", "\n    nodeIndex: 3\n    pathIndex: 0\n",
		"message: Diagnosis is completed", "message: Diagnosis is accepted by agent on node my-node",
		"collector.kubernetes.pod.detail: ", "collector.system.mountinfo: ",
		"diagnoser.kubernetes.subpath_remount.result: pod met a bug of subpath-remounting",
		"diagnoser.kubernetes.subpath_remount.bug_link: https://github.com/kubernetes/kubernetes/issues/68211",
		"diagnoser.kubernetes.subpath_remount.original_source_path: ",
		"diagnoser.kubernetes.subpath_remount.original_destination_path: ",
		"recover.kubernetes.subpath_remount.result: Succeesfully umount ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	if after := demoLeftovers(t); !slices.Equal(before, after) {
		t.Errorf("the demo left something behind:\n%q\n%q", before, after)
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
