// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"os/exec"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// PodProcess starts a process in a control group of a pod, as a kubelet names it, until end is called or the test ends.
func PodProcess(t testing.TB, uid string) (end func()) {
	t.Helper()
	group := kerneltest.ControlGroup(t, "kubepods-besteffort-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
	app := exec.Command("sleep", "1000")
	kerneltest.Must(t, app.Start())
	kerneltest.JoinControlGroup(t, group, app.Process.Pid)
	end = func() {
		_ = app.Process.Kill()
		_ = app.Wait() // it was killed
		kerneltest.AwaitEmpty(t, group)
	}
	t.Cleanup(end)
	return end
}
