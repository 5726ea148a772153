// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"errors"
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

// PodProcess starts a process in a control group of a pod, as a kubelet names it, until end is called or the test ends.
func PodProcess(t testing.TB, uid string) (end func()) {
	t.Helper()
	groups := t.TempDir()
	kerneltest.Must(t, sys.NewMount("none", groups, "cgroup2", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(groups, true) })
	group := filepath.Join(groups, "kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	kerneltest.Must(t, os.Mkdir(group, 0o755))
	app := exec.Command("sleep", "1000")
	kerneltest.Must(t, app.Start())
	kerneltest.Must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(app.Process.Pid)), 0o644))
	end = func() {
		_ = app.Process.Kill()
		_ = app.Wait() // it was killed
		kerneltest.Await(t, "the end of the control group", func() bool {
			err := os.Remove(group)
			return err == nil || errors.Is(err, os.ErrNotExist)
		})
	}
	t.Cleanup(end)
	return end
}
