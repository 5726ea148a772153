// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package devholder

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/hung"
)

// overlayTrapRole is a role: in a namespace of its own it has an overlay with a layer whose path leads over another
// overlay, one of the directory args[1] of a FUSE file system. Its memory is locked as it waits for the file args[2] of
// that.
func overlayTrapRole(args []string, ready func(string)) error {
	at := args[0]
	err := errors.Join(sys.SetPropagation("/", sys.Private, true), sys.NewMount("trap", at, "tmpfs", ""))
	for _, dir := range []string{"over", "empty", "merged"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(at, dir), 0o755))
	}
	over, empty := filepath.Join(at, "over"), filepath.Join(at, "empty")
	err = errors.Join(err,
		sys.NewMount("over", over, "overlay", "lowerdir="+args[1]+":"+empty),
		sys.NewMount("merged", filepath.Join(at, "merged"), "overlay", "lowerdir="+filepath.Join(over, "dir")+":"+empty))
	if err != nil {
		return err
	}
	ready("")
	_ = hung.LockMemory(args[2]) // it returns if the server has ended
	kerneltest.WaitForEnd()
	return nil
}

// execRole is a role: a process that is about to run another program, and waits for the file args[0] to be closed.
func execRole(args []string, ready func(string)) error {
	ready("")
	return hung.Exec(args[0])
}

// TestAttackersCannotBlockTheSearch makes everything hang that the search meets in the namespace and in the memory of
// another process. No thread of this process waits for that. The search ends, finds the holder of the device, and
// reports its gaps.
func TestAttackersCannotBlockTheSearch(t *testing.T) {
	d := newTestDisk(t)
	pid := d.startRole(t, "lazy file")
	base := t.TempDir()
	server := kerneltest.FUSE(t, base)
	file := filepath.Join(base, "stuck")
	other := kerneltest.Start(t, "execs", file)
	t.Cleanup(server.Kill) // first of all, so that nothing is left that waits
	kerneltest.AwaitExec(t, other.PID)
	locked := kerneltest.Start(t, "trap", t.TempDir(), base, file)
	t.Cleanup(server.Kill)
	kerneltest.AwaitLocked(t, locked.PID)
	if _, err := os.Lstat(filepath.Join(base, "mute")); !errors.Is(err, sys.ENOENT) {
		t.Fatal(err)
	}
	finder := &Finder{WithProcesses: true, Runner: &subprocess.Runner{}}
	stop := kerneltest.NobodyWaits(t, os.Getpid())
	lingering := 0 // more than one on a machine where others are slow
	for i := range 3 {
		begin := time.Now()
		r, err := finder.Find(t.Context(), d.Device)
		must(t, err)
		if took := time.Since(begin); took > kerneltest.Patience(20*time.Second) {
			t.Errorf("search %d took %v", i, took)
		}
		if diff := cmp.Diff(processSummary(OpenFile, "/file", pid), holderSummaries(r)); diff != "" {
			t.Errorf("search %d: %s", i, diff)
		}
		if r.Coverage.Unplaced == 0 || r.Coverage.Unanswered == 0 {
			t.Errorf("search %d does not say that a layer, and the memory of a process, could not be looked at: %+v", i, r.Coverage)
		}
		if lingering == 0 {
			lingering = finder.Runner.Lingering()
		}
	}
	stop()
	// None waits twice for the same. The process of a search that is over may need a moment to end.
	kerneltest.Await(t, "as few processes that are left behind as after the first search", func() bool { return finder.Runner.Lingering() <= lingering })
	if finder.Runner.Lingering() == 0 {
		t.Error("no process is left behind")
	}
	server.Kill()
	kerneltest.Await(t, "no process is left", func() bool { return finder.Runner.Lingering() == 0 })
	if keys := jobs.waitFor(); len(keys) > 0 {
		t.Errorf("waits for %q", keys)
	}
}
