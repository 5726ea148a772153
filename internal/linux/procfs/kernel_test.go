// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package procfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/hung"
)

func TestMain(m *testing.M) {
	kerneltest.Main(m, kerneltest.Roles{"execs": func(args []string, ready func(string)) error {
		ready("")
		return hung.Exec(args[0])
	}})
}

// TestProcessThatBecomesAnother: a process that waits for a file system while it becomes another program is given up by all that
// look at it, and by every pass over the processes of the machine.
func TestProcessThatBecomesAnother(t *testing.T) {
	base := t.TempDir()
	server := kerneltest.FUSE(t, base)
	actor := kerneltest.Start(t, "execs", filepath.Join(base, "stuck"))
	t.Cleanup(server.Kill) // first of all, so that nothing is left that waits
	if !kerneltest.AwaitExec(t, actor.PID) {
		t.Skip("kernel lacks an execve that gives up its memory before it closes files")
	}
	quick := func(what string, fn func()) {
		t.Helper()
		begin := time.Now()
		if fn(); time.Since(begin) > kerneltest.Patience(10*time.Second) {
			t.Errorf("%s took %v", what, time.Since(begin))
		}
	}
	maps := func() ([]byte, error) { return sys.ReadProc(strconv.Itoa(actor.PID)+"/maps", nil) }
	for range 2 {
		quick("its map", func() {
			if _, err := procfs.Ask(actor.PID, maps); !errors.Is(err, procfs.ErrSilent) {
				t.Errorf("its map: %v, want ErrSilent", err)
			}
		})
	}
	quick("its namespace", func() {
		if _, err := mountns.Of(actor.PID); !errors.Is(err, procfs.ErrSilent) {
			t.Errorf("its namespace: %v, want ErrSilent", err)
		}
	})
	quick("who is in our namespace", func() {
		own, err := mountns.Of(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		holders, survey, err := mountns.Holders([]mountns.Namespace{own})
		if err != nil || !slices.ContainsFunc(holders[own.Inode], func(h mountns.Holder) bool { return h.PID == os.Getpid() }) {
			t.Errorf("holders %+v, %v: want this process among them", holders, err)
		}
		if survey.Denied == 0 {
			t.Errorf("survey %+v does not say that a process was not asked", survey)
		}
	})
	quick("who serves FUSE", func() {
		servers, unseen, err := fuse.Servers(t.Context())
		if err != nil || unseen == "" {
			t.Errorf("servers %v, unseen %q, %v: want that a process was not asked", servers, unseen, err)
		}
	})
	server.Kill()
	kerneltest.Await(t, "it is silent no more", func() bool {
		_, err := procfs.Ask(actor.PID, maps)
		return !errors.Is(err, procfs.ErrSilent)
	})
}
