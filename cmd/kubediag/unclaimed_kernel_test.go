// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// privateProcess starts a process with a mount namespace of its own, a copy of the test's, in a control group.
func privateProcess(t *testing.T, group string) *os.Process {
	t.Helper()
	dir := kerneltest.ControlGroup(t, group)
	cmd := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-c", "echo ready; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	kerneltest.Must(t, err)
	kerneltest.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	_, err = out.Read(make([]byte, 1)) // it has its namespace
	kerneltest.Must(t, err)
	kerneltest.JoinControlGroup(t, dir, cmd.Process.Pid)
	return cmd.Process
}

// TestDeadFUSEWithoutSpecs scans a node without the specs of its pods. A container of a pod has a dead FUSE file system of the
// host, and no container runtime says which container it is.
func TestDeadFUSEWithoutSpecs(t *testing.T) {
	n := newLeavingNode(t)
	host := filepath.Join(t.TempDir(), "host")
	kerneltest.Must(t, os.Mkdir(host, 0o755))
	daemon := kerneltest.FUSE(t, host)
	privateProcess(t, fmt.Sprintf("kubediag-system-%d.slice", os.Getpid())) // a service of the node
	scan := func(args ...string) *result {
		return callers[0].run(t, n.program, "", append([]string{"scan", "--kubelet-root=" + n.root}, args...)...)
	}
	daemon.Kill()
	if r := scan(); r.status != 2 || strings.Contains(r.out, "✓") || !strings.Contains(r.out, host) || !strings.Contains(r.out, "is broken (DisconnectedFUSE)") {
		t.Errorf("no container has it: %s, want status 2, and the mount", r)
	}
	if r := callers[0].run(t, n.program, "", "diagnose", "--kubelet-root="+n.root, "--data-root="+t.TempDir()); r.status == 0 {
		t.Errorf("no container has it: Diagnosis of the node: %s", r)
	}
	if r := scan("--pods=" + n.specs(t, 0)); r.status != 0 || !strings.Contains(r.out, "✓") {
		t.Errorf("no pod has it by its spec: %s, want status 0", r)
	}
	app := privateProcess(t, "kubepods-pod"+strings.ReplaceAll(leavingUID, "-", "_")+".slice")
	ns, err := mountns.Of(app.Pid)
	kerneltest.Must(t, err)
	for _, onHost := range []bool{true, false} {
		if !onHost {
			kerneltest.Must(t, systest.UnmountPath(host, true))
		}
		for _, args := range [][]string{nil, {"--brief"}} {
			if r := scan(args...); r.status != 2 || strings.Contains(r.out, "✓") {
				t.Errorf("on the host %v, %q: %s, want status 2 and no check mark", onHost, args, r)
			}
		}
		r := scan("-o", "json")
		var report scanned
		r.read(t, &report)
		places := report.Looked.Unproven
		if len(places) != 1 || places[0].Point != host || places[0].Pod.UID != leavingUID ||
			!strings.Contains(places[0].Why, fmt.Sprintf("process %d of the pod", app.Pid)) || !strings.Contains(places[0].Why, ns.String()) {
			t.Errorf("on the host %v: not judged: %+v, want %q, process %d and namespace %s", onHost, places, host, app.Pid, ns)
		}
		text, d := "", callers[0].run(t, n.program, "", "diagnose", "--kubelet-root="+n.root, "--data-root="+t.TempDir())
		text = strings.Join(strings.Fields(d.out+d.errors), " ")
		if d.status == 0 || !strings.Contains(text, host) {
			t.Errorf("Diagnosis of the node, on the host %v: %s", onHost, d)
		}
	}
}

// TestDiagnoseOfAnUnknownPod says once that no source knows the pod.
func TestDiagnoseOfAnUnknownPod(t *testing.T) {
	n := newLeavingNode(t)
	r := callers[0].run(t, n.program, "", "diagnose", "--pod=shop/nosuch", "--kubelet-root="+n.root)
	if text := r.out + r.errors; r.status == 0 || strings.Count(text, "shop/nosuch") == 0 || strings.Count(text, "pod not found") != 1 {
		t.Errorf("%s, want the reason once", r)
	}
}
