// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package cri

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestPodRunsByProcesses: a process in the control group of a pod, whose runtime says that all has ended, or says nothing.
func TestPodRunsByProcesses(t *testing.T) {
	groups := t.TempDir()
	must(t, sys.NewMount("none", groups, "cgroup2", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(groups, true) })
	uid := "5e1b6f0a-8c3d-4a57-9a0e-" + strconv.Itoa(100_000_000_000+os.Getpid())
	group := filepath.Join(groups, "kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	must(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	})
	app := exec.Command("sleep", "1000")
	must(t, app.Start())
	t.Cleanup(func() { _ = app.Process.Kill() })
	must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(app.Process.Pid)), 0o644))
	want := "process " + strconv.Itoa(app.Process.Pid) + ", which is in a control group of the pod"
	for name, runtime := range map[string]PodRuntime{"no runtime": nil, "silent": records(nil), "ended": records{uid: {{Name: "app", Exited: true}}}} {
		if got, err := PodRuns(t.Context(), runtime, uid); err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, want)
		}
	}
	must(t, app.Process.Kill())
	_ = app.Wait() // it was killed
	kerneltest.Await(t, "the end of the control group", func() bool { return os.Remove(group) == nil })
	if visible, err := sys.ProcVisibility(); err != nil || visible != sys.SeesAll {
		t.Fatalf("/proc shows %d (%v), and the rest of the test needs one that shows all", visible, err)
	}
	for name, runtime := range map[string]PodRuntime{"no runtime": nil, "silent": records(nil), "ended": records{uid: {{Name: "app", Exited: true}}}} {
		if got, err := PodRuns(t.Context(), runtime, uid); err != nil || got != "" {
			t.Errorf("%s, after its end: %q (%v)", name, got, err)
		}
	}
}
