// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Start starts a program, which runs until it is ended with End, or else to the end of the test. If the test fails, it logs the end of
// the output. The program dies with this process, and so with the thread that started it: that one stays as long as the test.
func Start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = sys.OwnProcessGroup()
	cmd.SysProcAttr.Pdeathsig = 9
	output, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = output, output
	ctx, started := t.Context(), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-ctx.Done()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		End(cmd)
		output.Close()
		if text, err := os.ReadFile(output.Name()); err == nil && t.Failed() {
			t.Logf("%s\n%s", filepath.Base(cmd.Path), text[max(0, len(text)-8000):])
		}
	})
}

// End kills a program and waits until it is gone, with its children.
func End(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = sys.KillGroup(cmd.Process.Pid)
		_ = cmd.Wait()
	}
}
