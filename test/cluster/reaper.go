// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"

	"kubediag.org/kubediag/test/debian"
)

// reaperOf is the variable that makes a program with this package in it the reaper of a cluster. A test binary cannot
// be given a command of its own, and may be deleted while it runs, so the reaper is the same program once more.
const reaperOf = "KUBEDIAG_CLUSTER_REAPER_OF"

func init() {
	if dir := os.Getenv(reaperOf); dir != "" {
		os.Exit(runReaper(dir))
	}
}

// runReaper waits for the other end of standard input to close, takes the cluster down, and writes its failures to standard
// output. It cannot be interrupted, only killed: it runs when others are.
func runReaper(dir string) int {
	signal.Ignore()
	_, _ = io.Copy(io.Discard, os.Stdin) // nothing is ever written; the end is what counts
	if err := tearDown(dir); err != nil {
		fmt.Fprintln(os.Stdout, err)
		return 1
	}
	return 0
}

// reaper is the owner's side of the process that takes the cluster down.
type reaper struct {
	cmd    *exec.Cmd
	life   *os.File // closing it, or dying, ends the cluster
	result *os.File
}

// startReaper starts the reaper of the cluster in dir and lets it hold the cluster's lock.
func startReaper(dir string, lock *os.File) (*reaper, error) {
	in, life, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make reaper pipe: %w", err)
	}
	defer in.Close()
	result, out, err := os.Pipe()
	if err != nil {
		life.Close()
		return nil, fmt.Errorf("make reaper pipe: %w", err)
	}
	defer out.Close()
	r := &reaper{cmd: exec.Command("/proc/self/exe"), life: life, result: result}
	r.cmd.Args, r.cmd.Dir = []string{"cluster-reaper", dir}, "/"
	r.cmd.Env = []string{"PATH=" + debian.Path, reaperOf + "=" + dir}
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.ExtraFiles = in, out, []*os.File{lock}
	detach(r.cmd)
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start reaper: %w", err), life.Close(), result.Close())
	}
	return r, nil
}

// finish lets the reaper do its work and gives its report. It is called once.
func (r *reaper) finish() error {
	r.life.Close()
	defer r.result.Close()
	report, rerr := io.ReadAll(r.result)
	if err := r.cmd.Wait(); err != nil || rerr != nil {
		return fmt.Errorf("take cluster down: %w: %s", errors.Join(err, rerr), report)
	}
	return nil
}
