// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// TestAttackersCannotBlockTheUnmount: the way to a copy leads over an overlay of a file system that does not answer.
// The unmount ends with its time, no thread of this process waits, and none waits twice.
func TestAttackersCannotBlockTheUnmount(t *testing.T) {
	s := devicetest.New(t, "")
	base := t.TempDir()
	server := kerneltest.FUSE(t, base)
	s.Container("overlaid", base)
	s.Runtime.Of = devicetest.Exporter()
	s.Runtime.Of.Mounts = []cri.Mount{{HostPath: "/", ContainerPath: "/over/dir"}}
	s.UnmountOnHost()
	usage := s.Left()
	if usage == nil || len(usage.Copies()) != 2 {
		t.Fatalf("case = %+v, want two copies", usage)
	}
	if _, err := os.Lstat(filepath.Join(base, "mute")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	stop := kerneltest.NobodyWaits(t, os.Getpid())
	for range 2 { // the second one finds that the first still waits
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		begin := time.Now()
		err := s.Inspector.Unmount(ctx, usage.Copies()[0].RecordedMount)
		cancel()
		if err == nil || time.Since(begin) > kerneltest.Patience(20*time.Second) {
			t.Errorf("%v after %v, want that it was given up", err, time.Since(begin))
		}
	}
	stop()
	if n := s.Inspector.Runner.Lingering(); n != 1 {
		t.Errorf("%d processes are left behind, want one", n)
	}
	server.Kill()
	for deadline := time.Now().Add(30 * time.Second); s.Inspector.Runner.Lingering() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a process is left")
		}
	}
	if !s.Busy() {
		t.Error("the device is free, though the way to the copies was never found")
	}
}
