// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// watchReports collects the events of a watcher until it is closed.
type watchReports struct {
	*sys.Watcher
	events chan sys.Event
}

func newReports(t *testing.T) watchReports {
	t.Helper()
	w, err := sys.NewWatcher()
	must(t, err)
	r := watchReports{Watcher: w, events: make(chan sys.Event, 1000)}
	ended := make(chan error)
	go func() {
		for {
			events, err := w.Read()
			if err != nil {
				ended <- err
				return
			}
			for _, e := range events {
				r.events <- e
			}
		}
	}()
	t.Cleanup(func() {
		w.Close()
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("read: %v, want closed", err)
		}
	})
	return r
}

func (r watchReports) addWatch(t *testing.T, path string, mask uint32) int {
	t.Helper()
	fd, err := sys.Lookup(path)
	must(t, err)
	defer fd.Close()
	watch, err := r.Add(fd, mask)
	must(t, err)
	return watch
}

// expectEvent waits for one event and fails where another comes.
func (r watchReports) expectEvent(t *testing.T, watch int, mask uint32) sys.Event {
	t.Helper()
	select {
	case e := <-r.events:
		if e.Watch != watch || e.Mask&mask == 0 {
			t.Fatalf("event %+v, want %#x of %d", e, mask, watch)
		}
		return e
	case <-time.After(10 * time.Second):
		t.Fatalf("no event, want %#x of %d", mask, watch)
	}
	return sys.Event{}
}

// boundSources is a directory with two binds as the kubelet makes them: of a file and
// of a directory.
type boundSources struct {
	file, dir           string // the sources
	fileMount, dirMount string
}

func makeBinds(t *testing.T) boundSources {
	t.Helper()
	root := t.TempDir()
	must(t, sys.NewMount("tmpfs", root, "tmpfs", ""))
	t.Cleanup(func() { systest.UnmountPath(root, true) })
	at := func(name string) string { return filepath.Join(root, name) }
	b := boundSources{file: at("volume/key"), dir: at("volume/sub"), fileMount: at("0"), dirMount: at("1")}
	for _, err := range []error{
		os.MkdirAll(b.dir, 0o700), os.Mkdir(b.dirMount, 0o700),
		os.WriteFile(b.file, nil, 0o600), os.WriteFile(b.fileMount, nil, 0o600),
		sys.BindMount(b.file, b.fileMount), sys.BindMount(b.dir, b.dirMount),
	} {
		must(t, err)
	}
	return b
}

const everything = sys.WatchAttrib | sys.WatchMoveSelf | sys.WatchDeleteSelf

// TestWatchReportsAtOnce watches the file that is bound, through the bind,
// and the parent of the directory that is bound.
func TestWatchReportsAtOnce(t *testing.T) {
	t.Run("unlinked", func(t *testing.T) {
		b, r := makeBinds(t), newReports(t)
		watch := r.addWatch(t, b.fileMount, everything)
		must(t, os.Remove(b.file))
		r.expectEvent(t, watch, sys.WatchAttrib)
	})
	t.Run("replaced by rename", func(t *testing.T) {
		b, r := makeBinds(t), newReports(t)
		watch := r.addWatch(t, b.fileMount, everything)
		must(t, os.WriteFile(b.file+".new", nil, 0o600))
		must(t, os.Rename(b.file+".new", b.file))
		r.expectEvent(t, watch, sys.WatchAttrib)
	})
	t.Run("renamed", func(t *testing.T) {
		b, r := makeBinds(t), newReports(t)
		watch := r.addWatch(t, b.fileMount, everything)
		must(t, os.Rename(b.file, b.file+".bak"))
		r.expectEvent(t, watch, sys.WatchMoveSelf)
	})
	t.Run("directory removed", func(t *testing.T) {
		b, r := makeBinds(t), newReports(t)
		r.addWatch(t, b.dirMount, sys.WatchMoveSelf|sys.WatchDeleteSelf) // says nothing as long as it is mounted
		parent := r.addWatch(t, filepath.Dir(b.dir), sys.WatchDelete|sys.WatchMovedFrom)
		must(t, os.Remove(b.dir))
		if e := r.expectEvent(t, parent, sys.WatchDelete); e.Name != "sub" {
			t.Errorf("event %+v, want the name sub", e)
		}
	})
	t.Run("directory renamed", func(t *testing.T) {
		b, r := makeBinds(t), newReports(t)
		parent := r.addWatch(t, filepath.Dir(b.dir), sys.WatchDelete|sys.WatchMovedFrom)
		must(t, os.Rename(b.dir, b.dir+".bak"))
		if e := r.expectEvent(t, parent, sys.WatchMovedFrom); e.Name != "sub" {
			t.Errorf("event %+v, want the name sub", e)
		}
	})
}

// TestWatchKeepsNothingBusy unmounts a watched file system without force, first its binds and then itself.
func TestWatchKeepsNothingBusy(t *testing.T) {
	b, r := makeBinds(t), newReports(t)
	file, dir := r.addWatch(t, b.fileMount, everything), r.addWatch(t, b.dirMount, everything|sys.WatchDelete)
	must(t, systest.UnmountPath(b.fileMount, false))
	must(t, systest.UnmountPath(b.dirMount, false))
	must(t, os.Remove(b.file)) // of which it still hears, and of its end
	r.expectEvent(t, file, sys.WatchAttrib)
	r.expectEvent(t, file, sys.WatchDeleteSelf)
	r.expectEvent(t, file, sys.WatchIgnored)
	must(t, systest.UnmountPath(filepath.Dir(b.fileMount), false))
	r.expectEvent(t, dir, ^sys.WatchIgnored) // IN_UNMOUNT
	r.expectEvent(t, dir, sys.WatchIgnored)
}

// TestWatchInAnotherNamespace: a file of another namespace is watched, whether Add is called there or here, and the
// namespace ends when its process does.
func TestWatchInAnotherNamespace(t *testing.T) {
	b, r := makeBinds(t), newReports(t)
	other := kerneltest.Start(t, "hold")
	must(t, systest.UnmountPath(b.fileMount, false)) // here, not there
	ns, err := sys.OpenNamespace(strconv.Itoa(other.PID) + "/ns/mnt")
	must(t, err)
	var inside *sys.FD
	watch := 0
	must(t, sys.OnThread(func() (err error) {
		if err = ns.EnterMountNamespace(); err != nil {
			return err
		}
		// Add does not go through a forged /proc.
		if err = sys.NewMount("forged", "/proc", "tmpfs", ""); err != nil {
			return err
		}
		if inside, err = sys.Lookup(b.fileMount); err != nil {
			return err
		}
		watch, err = r.Add(inside, everything)
		return err
	}))
	again, err := r.Add(inside, everything)
	must(t, err)
	if again != watch {
		t.Errorf("watch %d, and %d from outside", watch, again)
	}
	must(t, inside.Close())
	info, err := ns.NamespaceInfo()
	must(t, ns.Close())
	if err == nil { // 6.12
		if _, err := sys.Listmount(sys.MountRef{Namespace: info.ID, Mount: sys.RootOf}, 0, make([]uint64, 1)); err != nil {
			t.Errorf("list the mounts of the namespace: %v", err)
		}
	}
	other.End()
	if err == nil {
		awaitEnd(t, info.ID)
	}
	must(t, os.Remove(b.file))
	r.expectEvent(t, watch, sys.WatchAttrib)
}

// awaitEnd waits until the mount namespace with that number is no more.
func awaitEnd(t *testing.T, id uint64) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, err := sys.Listmount(sys.MountRef{Namespace: id, Mount: sys.RootOf}, 0, make([]uint64, 1))
		if errors.Is(err, sys.ENOENT) {
			return
		}
	}
	t.Error("the watch keeps the namespace alive")
}
