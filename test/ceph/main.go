// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package ceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// folderEnv says where the cluster is that was started for the tests.
const folderEnv = "KUBEDIAG_CEPH"

// maxStart bounds how long a cluster takes to start, its packages' installation included.
const maxStart = 5 * time.Minute

// Main is for TestMain. It starts one cluster for all tests of the package and runs them as kerneltest.Main does: in a
// mount namespace of their own, with a check that nothing stays open. They get the cluster from Shared. Main does not
// return.
func Main(m *testing.M, roles kerneltest.Roles) {
	if os.Getenv(folderEnv) != "" {
		kerneltest.Main(m, roles)
	}
	status, err := own()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ceph:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// Shared is the cluster that Main started. Only Main stops it.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	dir := os.Getenv(folderEnv)
	if dir == "" {
		t.Fatal("no ceph: TestMain does not call ceph.Main")
	}
	return &Cluster{dir: dir}
}

// own starts a cluster, runs this program once more beside it, and gives its exit status.
func own() (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	starting, cancel := context.WithTimeout(ctx, maxStart)
	defer cancel()
	c, err := Start(starting)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	runtime.LockOSThread() // the tests are killed when the thread that started them ends
	tests := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	tests.Args[0] = os.Args[0]
	tests.Env = append(os.Environ(), folderEnv+"="+c.dir)
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	tests.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := tests.Run(); tests.ProcessState == nil {
		return 1, fmt.Errorf("run tests: %w", err)
	}
	if !tests.ProcessState.Exited() {
		return 1, fmt.Errorf("run tests: %s", tests.ProcessState)
	}
	return tests.ProcessState.ExitCode(), nil
}
