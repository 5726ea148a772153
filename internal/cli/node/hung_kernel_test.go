// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/test/hung"
)

// hungKubeletRole is a process with the name of a kubelet, which is about to become another program and waits for the
// file args[1] to be closed, or whose memory is locked as it waits for that to be written.
func hungKubeletRole(args []string, ready func(string)) error {
	if err := os.WriteFile("/proc/self/comm", []byte("kubelet"), 0); err != nil {
		return err
	}
	ready("")
	if args[0] == "exec" {
		return hung.Exec(args[1])
	}
	_ = hung.LockMemory(args[1]) // it returns if the server has ended
	kerneltest.WaitForEnd()
	return nil
}

// TestProcessesThatDoNotAnswer: scan and holders end while processes do not answer, one of them by the name of kubelet, and
// report these gaps.
func TestProcessesThatDoNotAnswer(t *testing.T) {
	hung.TakeTurn(t)
	base := t.TempDir()
	server := kerneltest.FUSE(t, base)
	file := filepath.Join(base, "stuck")
	other := kerneltest.StartWith(t, nil, "hung", "exec", file) // in the mount namespace of the test
	t.Cleanup(server.Kill)                                      // first of all, so that nothing is left that waits
	kerneltest.AwaitExec(t, other.PID)
	locked := kerneltest.Start(t, "hung", "memory", file)
	t.Cleanup(server.Kill)
	kerneltest.AwaitLocked(t, locked.PID)
	p := loopVolume{scene: kubelettest.New(t), Device: newLoopDevice(t)} // which no process holds, so that processes are looked into
	silent := fmt.Sprintf("process %d (kubelet), in vain", locked.PID)
	begin := time.Now()
	r, err := scanJSON(t, nil, "--kubelet-root", p.scene.Root)
	if err != nil && r.SchemaVersion == 0 {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > kerneltest.Patience(30*time.Second) {
		t.Errorf("scan took %v", took)
	}
	if !slices.ContainsFunc(r.Looked.Notes, func(note string) bool { return strings.Contains(note, silent) }) {
		t.Errorf("notes of scan %q do not say that process %d did not answer", r.Looked.Notes, locked.PID)
	}
	for _, gap := range r.Looked.Gaps.NotLookedAt {
		if slices.Contains(strings.FieldsFunc(gap.Do, func(r rune) bool { return r == ' ' || r == ',' }), strconv.Itoa(other.PID)) {
			t.Errorf("process %d has no mounts of its own: %v", other.PID, gap)
		}
	}
	begin = time.Now()
	h, err := p.runHolders(t, p.Node())
	if err != nil && h.SchemaVersion == 0 {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > kerneltest.Patience(60*time.Second) {
		t.Errorf("holders took %v", took)
	}
	if h.Looked.Processes.Stuck == 0 || !slices.ContainsFunc(h.Looked.Origin.Notes, func(note string) bool { return strings.Contains(note, silent) }) {
		t.Errorf("holders has looked at %+v, and does not say what did not answer", h.Looked)
	}
}
