// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// ControlGroup makes a control group of version 2 that goes with the test, and returns its directory. All tests on the machine share
// the names. A process that joins it has to be ended by the test, or by a cleanup that was registered later.
func ControlGroup(t testing.TB, name string) (dir string) {
	t.Helper()
	groups := t.TempDir()
	Must(t, sys.NewMount("none", groups, "cgroup2", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(groups, true) })
	dir = filepath.Join(groups, name)
	Must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { AwaitEmpty(t, dir) })
	return dir
}

// JoinControlGroup moves a process into a control group.
func JoinControlGroup(t testing.TB, dir string, pid int) {
	t.Helper()
	Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644))
}

// AwaitEmpty waits until all processes of a control group have ended, and removes it.
func AwaitEmpty(t testing.TB, dir string) {
	t.Helper()
	Await(t, "the end of the control group", func() bool {
		err := os.Remove(dir)
		return err == nil || errors.Is(err, os.ErrNotExist)
	})
}
