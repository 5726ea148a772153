// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package reap

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func init() { runtime.LockOSThread() } // a role has the first thread

func TestMain(m *testing.M) {
	sleep := func(_ []string, ready func(string)) error {
		ready("")
		kerneltest.WaitForEnd()
		return nil
	}
	kerneltest.Main(m, kerneltest.Roles{"whole": sleep, "without its first thread": func(_ []string, ready func(string)) error {
		ready("")
		_, _, err := unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // of this thread alone
		return err
	}})
}

// TestFrozenProcessesEnd has processes in cgroups that were frozen, as by a runtime that was killed before it thawed them: in a
// container's own cgroup, and in that above it. The first thread of a process may have ended before the others were frozen.
func TestFrozenProcessesEnd(t *testing.T) {
	for name, f := range map[string]struct {
		freezer
		fsType, options, frozen, state, when string
	}{
		"version 1": {freezer1, "cgroup", "freezer", "FROZEN", "freezer.state", "FROZEN"},
		"version 2": {freezer2, "cgroup2", "", "1", "cgroup.events", "frozen 1"},
	} {
		for _, c := range [][2]string{{".", "whole"}, {"container", "whole"}, {"container", "without its first thread"}} {
			at, role := c[0], c[1]
			t.Run(name+" at "+at+" "+role, func(t *testing.T) {
				root := t.TempDir()
				if err := unix.Mount("cgroup", root, f.fsType, 0, f.options); err != nil {
					t.Skipf("kernel lacks the freezer of %s: %v", f.fsType, err)
				}
				t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) }) // it goes with the namespace
				group, err := os.MkdirTemp(root, "kubediag-reap-")
				container := filepath.Join(group, "container")
				if err := errors.Join(err, os.Mkdir(container, 0o755)); err != nil {
					t.Fatal(err)
				}
				process := kerneltest.Start(t, role)
				pid := process.PID
				kerneltest.Await(t, "its first thread to be as wanted", func() bool {
					threads := Threads(pid)
					return len(threads) > 0 && strings.Contains(threads[0], "task") == (role != "whole")
				})
				frozen := filepath.Join(group, at)
				t.Cleanup(func() {
					_ = os.WriteFile(filepath.Join(frozen, f.file), []byte(f.thaw), 0)
					process.Kill()
					process.End()
					if err := errors.Join(os.Remove(container), os.Remove(group)); err != nil {
						t.Error(err)
					}
				})
				if err := errors.Join(os.WriteFile(filepath.Join(container, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0),
					os.WriteFile(filepath.Join(frozen, f.file), []byte(f.frozen), 0)); err != nil {
					t.Fatal(err)
				}
				kerneltest.Await(t, f.when, func() bool {
					state, err := os.ReadFile(filepath.Join(container, f.state))
					return err == nil && strings.Contains(string(state), f.when)
				})
				belongs := func(p int) bool { return p == pid && len(Threads(p)) > 0 }
				if err := repeat(10*time.Second, func() ([]int, error) { return killEach(belongs) }); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
