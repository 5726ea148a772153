// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package cri

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestPodRunsByProcesses: a process in the control group of a pod, whose runtime says that all has ended, or says nothing.
func TestPodRunsByProcesses(t *testing.T) {
	uid := "5e1b6f0a-8c3d-4a57-9a0e-" + strconv.Itoa(100_000_000_000+os.Getpid())
	group := kerneltest.ControlGroup(t, "kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	app := exec.Command("sleep", "1000")
	must(t, app.Start())
	t.Cleanup(func() { _ = app.Process.Kill() })
	kerneltest.JoinControlGroup(t, group, app.Process.Pid)
	want := "process " + strconv.Itoa(app.Process.Pid) + ", which is in a control group of the pod"
	for name, runtime := range map[string]PodRuntime{"no runtime": nil, "silent": records(nil), "ended": records{uid: {{Name: "app", Exited: true}}}} {
		if got, err := PodRuns(t.Context(), runtime, uid); err != nil || got != want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, want)
		}
	}
	must(t, app.Process.Kill())
	_ = app.Wait() // it was killed
	kerneltest.AwaitEmpty(t, group)
	if visible, err := sys.ProcVisibility(); err != nil || visible != sys.SeesAll {
		t.Fatalf("/proc shows %d (%v), and the rest of the test needs one that shows all", visible, err)
	}
	for name, runtime := range map[string]PodRuntime{"no runtime": nil, "silent": records(nil), "ended": records{uid: {{Name: "app", Exited: true}}}} {
		if got, err := PodRuns(t.Context(), runtime, uid); err != nil || got != "" {
			t.Errorf("%s, after its end: %q (%v)", name, got, err)
		}
	}
}
