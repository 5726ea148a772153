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
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
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
		l := &look{table: mountinfo.NewTable([]mountinfo.Mount{m})}
		dir, err := sys.Lookup(filepath.Dir(name))
		if err != nil {
			t.Fatal(err)
		}
		record, err := l.readRecordIn(dir)
		dir.Close()
		if want == "" && (err != nil || record.Handle != "h") || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("on %s: %v, %v, want %q", fsType, record, err, want)
		}
	}
}

// silence is a runtime that gives no answer.
type silence struct{ asked int }

func (s *silence) Owner(ctx context.Context, _ string) (cri.Owner, error) {
	s.asked++
	if s.asked == 1 {
		<-ctx.Done()
	}
	return cri.Owner{}, errors.Join(cri.ErrUnavailable, ctx.Err())
}

// TestARuntimeThatHangs is not waited for once for each container of the node, and what it has not been asked of is no
// stranger.
func TestARuntimeThatHangs(t *testing.T) {
	t.Parallel()
	r := &silence{}
	l := &look{Inspector: &Inspector{Runtime: r}, spaces: map[place]*space{}}
	began := time.Now()
	for inode := range uint64(100) {
		s := &space{silent: true}
		if owner, outside, why := l.owner(t.Context(), s, "0::/c"); owner != nil || outside || !strings.Contains(why, "cannot be told") || !s.silent {
			t.Fatalf("%+v, %q", owner, why)
		}
		l.spaces[place{inode: inode}] = s
		l.attribute(mountns.Mount{Unique: inode + 1, Namespace: mountns.Namespace{Inode: inode}}, nil)
		if l.strangers.has(inode + 1) {
			t.Fatal("a mount of nobody knows whom is taken for a stranger")
		}
	}
	if took := time.Since(began); r.asked != maxSilent || took > ownerDeadline+2*time.Second {
		t.Errorf("asked %d times, for %s", r.asked, took)
	}
	l.spaces[place{}].silent = false
	l.attribute(mountns.Mount{Unique: 1, Namespace: mountns.Namespace{Inode: 0}}, nil)
	if !l.strangers.has(1) {
		t.Error("a mount of nobody is no stranger")
	}
}

// TestAServerThatMakesUpInodes proves nothing by them.
func TestAServerThatMakesUpInodes(t *testing.T) {
	t.Parallel()
	first := probe.Answer{State: probe.Alive, Stat: probe.Stat{Inode: 7, Fresh: true}}
	for name, c := range map[string]struct {
		now      probe.Answer
		unsteady bool
	}{
		"the same":   {now: first},
		"another":    {now: probe.Answer{State: probe.Alive, Stat: probe.Stat{Inode: 8, Fresh: true}}, unsteady: true},
		"remembered": {now: probe.Answer{State: probe.Alive, Stat: probe.Stat{Inode: 7}}, unsteady: true},
		"none":       {now: probe.Answer{State: probe.Hung, Stat: probe.Stat{Inode: 7, Fresh: true}}, unsteady: true},
	} {
		v := &Volume{}
		v.expect(first)(c.now)
		if v.unsteady != c.unsteady {
			t.Errorf("%s: unsteady %v", name, v.unsteady)
		}
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
		if got := refused(c.err); got != c.want {
			t.Errorf("%s: refused %v, want %v", name, got, c.want)
		}
	}
}
