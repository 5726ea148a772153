// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/apitest"
)

// inside is set in the process that runs the tests.
const inside = "KUBEDIAG_STAGE_INSIDE"

// Main is for TestMain of tests with many mounts: it is apitest.Main in a mount namespace that no other process sees,
// so that neither the tests nor others on the machine see each other's mounts come and go. A process that a stage has
// started plays its part instead.
func Main(m *testing.M) {
	if part := os.Getenv(partEnv); part != "" {
		os.Exit(play(part, os.Args[1:]))
	}
	if os.Getenv(inside) == "" {
		os.Exit(reexec())
	}
	if err := mount.SetPropagation("/", mount.Private, true); err != nil {
		fmt.Fprintln(os.Stderr, "making mounts private:", err)
		os.Exit(1)
	}
	apitest.Main(m)
}

// reexec runs this program again in a mount namespace of its own and gives its exit status. The child dies with us.
func reexec() int {
	runtime.LockOSThread() // the child is told of this thread's death
	attr := sys.PrivateMounts(sys.Clone{})
	attr.Pdeathsig = 9
	p, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env: append(os.Environ(), inside+"=1"), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting in private mount namespace, which needs root:", err)
		return 1
	}
	state, err := p.Wait()
	if err != nil || !state.Exited() {
		fmt.Fprintln(os.Stderr, "waiting for the tests:", state, err)
		return 1
	}
	return state.ExitCode()
}
