// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// TestAnInterruptedScanSaysWhatItHasFound interrupts it while it waits for a volume that does not answer.
func TestAnInterruptedScanSaysWhatItHasFound(t *testing.T) {
	s := newScenery(t)
	control, err := fuse.Open()
	must(t, err)
	defer control.Close()
	minor, err := strconv.ParseUint(s.stopped.minor, 10, 32)
	must(t, err)
	cmd, r := callers[0].command(t, s.program, "", "scan", "-v", "--kubelet-root="+s.Root)
	must(t, cmd.Start())
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := control.Connection(uint32(minor))
		must(t, err)
		if c.Waiting > 0 && hasChild(cmd.Process.Pid) || time.Now().After(deadline) {
			break
		}
	}
	must(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait() // its status says more
	r.status = cmd.ProcessState.ExitCode()
	for _, want := range []string{
		"StaleSubPath (critical): ", "HeldDevice (critical): ", ": 2 faults in 2 places in what was looked at. ",
		"Not looked at: volumes, directories of pods that are gone, ", ": the scan was interrupted: run it again.\n",
		"kubediag: scan: not everything was looked at, so there may be faults that were not seen: run it again\n",
	} {
		if r.status != 2 || !strings.Contains(r.out+r.errors, want) {
			t.Errorf("want status 2 and %q, got %s", want, r)
		}
	}
}

// hasChild reports whether a process has started another: the program does so to ask volumes.
func hasChild(pid int) bool {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			return true
		}
	}
	return false
}

// TestARuntimeThatNeverAnswersIsNamed has one that accepts connections and says nothing.
func TestARuntimeThatNeverAnswersIsNamed(t *testing.T) {
	s, pod := kubelettest.New(t), kubelettest.NewPod()
	s.Update(pod, kubelettest.ConfigMap, "configmap", map[string]string{"app.ini": "one"})
	dir, err := os.MkdirTemp("", "cri") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	a := kerneltest.Start(t, "kubelet", "--root-dir="+s.Root, "--container-runtime-endpoint=unix://"+socket)
	r := callers[0].run(t, program(t), "", "scan", "--kubelet-pid="+strconv.Itoa(a.PID))
	for _, want := range []string{
		"Not looked at: what the container runtime at unix://" + socket + " knows of containers and pods: it did not answer for ",
		"see why with crictl --runtime-endpoint unix://" + socket + " info", "nothing broken in what was looked at. ",
	} {
		if r.status != 2 || !strings.Contains(r.out+r.errors, want) {
			t.Errorf("want status 2 and %q, got %s", want, r)
		}
	}
}
