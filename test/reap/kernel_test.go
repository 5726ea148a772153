// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package reap

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, nil) }

// TestFrozenProcessesEnd has processes in cgroups that were frozen, as by a runtime that was killed before it thawed them: in a
// container's own cgroup, and in that above it.
func TestFrozenProcessesEnd(t *testing.T) {
	for name, f := range map[string]struct {
		freezer
		fsType, options, frozen, state, when string
	}{
		"version 1": {freezer1, "cgroup", "freezer", "FROZEN", "freezer.state", "FROZEN"},
		"version 2": {freezer2, "cgroup2", "", "1", "cgroup.events", "frozen 1"},
	} {
		for _, at := range []string{".", "container"} {
			t.Run(name+" at "+at, func(t *testing.T) {
				root := t.TempDir()
				if err := unix.Mount("cgroup", root, f.fsType, 0, f.options); err != nil {
					t.Skipf("kernel lacks the freezer of %s: %v", f.fsType, err)
				}
				t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) }) // it goes with the namespace
				group, err := os.MkdirTemp(root, "kubediag-reap-")
				container, process := filepath.Join(group, "container"), exec.Command("sleep", "1000")
				if err := errors.Join(err, os.Mkdir(container, 0o755), process.Start()); err != nil {
					t.Fatal(err)
				}
				pid := process.Process.Pid
				frozen := filepath.Join(group, at)
				t.Cleanup(func() {
					_ = errors.Join(os.WriteFile(filepath.Join(frozen, f.file), []byte(f.thaw), 0), process.Process.Kill())
					_ = process.Wait() // it was killed
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
				belongs := func(p int) bool {
					stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p))
					return p == pid && !strings.Contains(string(stat), ") Z ")
				}
				if err := repeat(10*time.Second, func() ([]int, error) { return killEach(belongs) }); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
