// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// newReplaceOrder has directory below of the mount at from take the place of the mount at point, as a kernel before 6.8
// has it.
func newReplaceOrder(t *testing.T, from, below, point string) replaceOrder {
	t.Helper()
	source, err := mount.Inspect(from)
	must(t, err)
	target, err := mount.Inspect(point)
	must(t, err)
	target.UniqueID = 0
	fd, err := sys.Lookup(filepath.Join(from, below))
	must(t, err)
	defer fd.Close()
	st, err := fd.Stat(sys.StatIno)
	must(t, err)
	ns, err := mountns.Of(os.Getpid())
	must(t, err)
	ns, err = ns.Owned()
	must(t, err)
	return replaceOrder{
		KubeletNamespace: ns, MountNamespace: ns, From: source.ID, Below: below, Major: st.Major, Minor: st.Minor, Inode: st.Ino, Target: target.ID,
	}
}

// expectRefused has an order refused, and makes sure that nothing is touched.
func (o replaceOrder) expectRefused(t *testing.T) {
	t.Helper()
	before, err := mountns.Table(0)
	must(t, err)
	if done, err := (&Inspector{}).runOrder(t.Context(), o, "the source"); !errors.Is(err, ErrRefused) {
		t.Errorf("a healthy mount: %+v, %v, want that it is refused", done, err)
	}
	after, err := mountns.Table(0)
	must(t, err)
	now, ok := after.Top(o.Target.Point)
	if !ok || now.ID != o.Target.MountInfoID || now.Minor != o.Target.Minor || len(after.Mounts()) != len(before.Mounts()) {
		t.Errorf("at %q is %+v, and of %d mounts %d are left, want what was there", o.Target.Point, now, len(before.Mounts()), len(after.Mounts()))
	}
}

// expectReplaced has an order carried out, and makes sure that the source is there.
func (o replaceOrder) expectReplaced(t *testing.T) {
	t.Helper()
	if done, err := (&Inspector{}).runOrder(t.Context(), o, "the source"); err != nil {
		t.Errorf("a mount that is broken: %+v, %v", done, err)
	}
	fd, err := sys.Lookup(o.Target.Point)
	must(t, err)
	defer fd.Close()
	if st, err := fd.Stat(sys.StatIno); err != nil || st.Ino != o.Inode || st.Minor != o.Minor {
		t.Errorf("inode %d of device %d:%d is at %q, %v, want the source", st.Ino, st.Major, st.Minor, o.Target.Point, err)
	}
	_ = systest.UnmountPath(o.Target.Point, true)
}

// TestReplaceOfWhatHasGone: the driver has unmounted the dead mount since it was judged, and has mounted again. The
// kernel has given the new mount the numbers of the old.
func TestReplaceOfWhatHasGone(t *testing.T) {
	from, point := t.TempDir(), t.TempDir()
	kerneltest.FUSE(t, from)
	old := kerneltest.FUSE(t, point)
	was := newReplaceOrder(t, from, "dir", point)
	old.Kill()
	must(t, systest.UnmountPath(point, true))
	driver := kerneltest.FUSE(t, point)
	order := newReplaceOrder(t, from, "dir", point)
	if order != was {
		t.Logf("the new mount is %+v, and the old one was %+v", order.Target, was.Target)
	}
	order.expectRefused(t)
	if _, err := os.Stat(filepath.Join(point, "dir")); err != nil {
		t.Errorf("the new file system: %v", err)
	}
	driver.Kill()
	order.expectReplaced(t)
}

// TestReplaceOfWhatHasTheSource: a directory was replaced, and the driver has bound the new one since that was judged.
func TestReplaceOfWhatHasTheSource(t *testing.T) {
	from, point := t.TempDir(), t.TempDir()
	must(t, sys.NewMount("volumes", from, "tmpfs", ""))
	t.Cleanup(func() { _ = systest.UnmountPath(from, true) })
	for _, name := range []string{"vol", "old"} {
		must(t, os.Mkdir(filepath.Join(from, name), 0o755))
	}
	for name, do := range map[string]func(replaceOrder, *testing.T){"vol": replaceOrder.expectRefused, "old": replaceOrder.expectReplaced} {
		must(t, sys.BindMount(filepath.Join(from, name), point))
		order := newReplaceOrder(t, from, "vol", point)
		order.Answered = true
		do(order, t)
		_ = systest.UnmountPath(point, true)
	}
}
