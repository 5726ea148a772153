// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestRecordsOnWhatMayHang: the kernel may know the way to a directory of a file system that does not answer.
func TestRecordsOnWhatMayHang(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "vol_data.json")
	if err := os.WriteFile(name, []byte(`{"driverName":"d","volumeHandle":"h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := mountns.Table(0)
	if err != nil {
		t.Fatal(err)
	}
	on, _ := table.On(name)
	for fsType, want := range map[string]string{on.FSType: "", "fuse.cut": "may not answer", "nfs4": "may not answer"} {
		m := on
		m.FSType, m.Point = fsType, "/var"
		dir, err := sys.Lookup(filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		record, err := kubelet.ReadVolumeRecordIn(mountinfo.NewTable([]mountinfo.Mount{m}), dir)
		dir.Close()
		if want == "" && (err != nil || record.Handle != "h") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("on %s: %v, %v, want %q", fsType, record, err, want)
		}
	}
}

// unansweringRuntime is a runtime that gives no answer.
type unansweringRuntime struct{ asked int }

func (s *unansweringRuntime) Owner(ctx context.Context, cgroup string) (cri.Owner, error) {
	if len(cri.ContainerIDs(cgroup)) == 0 {
		return cri.Owner{}, cri.ErrNotFound
	}
	s.asked++
	if s.asked == 1 {
		<-ctx.Done()
	}
	return cri.Owner{}, errors.Join(cri.ErrUnavailable, ctx.Err())
}

// TestARuntimeThatHangs is not waited for once for each container of the node, and a process in none is known to be in
// none.
func TestARuntimeThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testRuntimeThatHangs)
}

func testRuntimeThatHangs(t *testing.T) {
	r := &unansweringRuntime{}
	n := &namespaces{runtime: r, cache: &ownerCache{}}
	began := time.Now()
	for range 100 {
		owner, outside, reason := n.askOwner(t.Context(), "0::/"+strings.Repeat("c", 64))
		if owner != nil || outside || !strings.HasSuffix(reason, "is unknown: "+n.lastFailure.Error()) {
			t.Fatalf("%+v, %q", owner, reason)
		}
		if _, outside, reason := n.askOwner(t.Context(), "0::/c"); !outside {
			t.Fatalf("a process in no container: %q", reason)
		}
	}
	if took := time.Since(began); r.asked != maxFailures || took != ownerDeadline {
		t.Errorf("asked %d times, for %s", r.asked, took)
	}
}

// TestWhatWasTouchedIsNotRefused: who reads that nothing was touched does not look.
func TestWhatWasTouchedIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"done":                 {},
		"another mount":        {err: &mount.Error{Op: "compare", Err: &mount.ChangedError{}}, want: true},
		"in use":               {err: &mount.Error{Op: "replace", Err: mount.ErrBusy}, want: true},
		"removed, source gone": {err: &mount.Error{Op: "put in place", Err: fmt.Errorf("%w: %w", mount.ErrNotReplaced, sys.ENOENT)}},
		"removed, and covered": {err: &mount.Error{Op: "verify", Err: mount.ErrChanged}},
		"another one removed":  {err: &mount.Error{Op: "verify", Err: fmt.Errorf("%w: %w", mount.ErrOtherUnmounted, mount.ErrBusy)}},
		"another error":        {err: &mount.Error{Op: "look up", Err: sys.EIO}},
	} {
		if got := nothingTouched(c.err); got != c.want {
			t.Errorf("%s: refused %v, want %v", name, got, c.want)
		}
	}
}
