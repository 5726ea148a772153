// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, roles) }

var roles = kerneltest.Roles{
	"hold": kerneltest.HoldPrivately,
	// follow has a mount namespace that shares with that of the test.
	"follow": kerneltest.Hold,
	// slave has one that follows that of the test.
	"slave": func(_ []string, ready func(string)) error {
		if err := SetPropagation("/", Slave, true); err != nil {
			return err
		}
		ready("")
		kerneltest.WaitForEnd()
		return nil
	},
	// work works in a directory.
	"work": func(args []string, ready func(string)) error {
		if err := os.Chdir(args[0]); err != nil {
			return err
		}
		ready("")
		kerneltest.WaitForEnd()
		return nil
	},
	"unmount": unmountRole,
	"heal":    healRole,
	"replace": replaceRole,
	"read":    readRole,
	"pod":     podRole,
	"die":     dieRole,
}

// onEverySource runs a test on each source of knowledge about mounts.
func onEverySource(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("mountinfo", func(t *testing.T) { withSource(t, tableSource{}, test) })
	t.Run("kernel", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasStatmount)
		withSource(t, nil, test)
	})
}

func withSource(t *testing.T, s mountSource, test func(t *testing.T)) {
	was := forcedMountSource
	forcedMountSource = s
	defer func() { forcedMountSource = was }()
	test(t)
}

// bindScene is a source file bound to a target, as the kubelet binds a subPath.
type bindScene struct {
	dir, source, target string
}

func newScene(t *testing.T) bindScene {
	t.Helper()
	dir := t.TempDir()
	must(t, Tmpfs(dir, 1<<20))
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
	s := bindScene{dir: dir, source: filepath.Join(dir, "source"), target: filepath.Join(dir, "target")}
	write(t, s.source)
	write(t, s.target)
	must(t, Bind(s.source, s.target))
	return s
}

func write(t *testing.T, name string) {
	t.Helper()
	must(t, os.WriteFile(name, []byte(name), 0o600))
}

var must = kerneltest.Must

func inspect(t testing.TB, point string) State {
	t.Helper()
	st, err := Inspect(point)
	must(t, err)
	return st
}

// inspectIn is Inspect in the namespace of a process.
func inspectIn(t testing.TB, pid int, point string) (st State) {
	t.Helper()
	ns, err := mountns.Of(pid)
	must(t, err)
	must(t, ns.Do(func() (err error) { st, err = Inspect(point); return err }))
	return st
}

func isMounted(t testing.TB, id ID) bool {
	t.Helper()
	found, err := tableSource{}.exists(id)
	must(t, err)
	return found
}

func TestUnmountRemovesDeletedMount(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		must(t, os.Remove(s.source))
		state := inspect(t, s.target)
		if !state.Deleted || !state.Gone || state.Root != "/source//deleted" {
			t.Fatalf("state = %+v, want deleted and gone", state)
		}
		must(t, Unmount(t.Context(), state.ID, Options{}))
		if isMounted(t, state.ID) {
			t.Error("mount still in the table")
		}
		if _, err := Inspect(s.target); !errors.Is(err, ErrNotMounted) {
			t.Errorf("inspect afterwards: %v, want ErrNotMounted", err)
		}
		err := Unmount(t.Context(), state.ID, Options{})
		if !errors.Is(err, ErrNotMounted) {
			t.Errorf("second unmount: %v, want ErrNotMounted", err)
		}
	})
}

func TestUnmountRemovesDeletedMountInUse(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		f, err := os.Open(s.target)
		must(t, err)
		defer f.Close()
		must(t, os.Remove(s.source))
		must(t, Unmount(t.Context(), inspect(t, s.target).ID, Options{}))
	})
}

func TestUnmountRemovesHealthyMountOnlyWhenUnused(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		id := inspect(t, s.target).ID
		f, err := os.Open(s.target)
		must(t, err)
		if err := Unmount(t.Context(), id, Options{}); !errors.Is(err, ErrBusy) {
			t.Errorf("unmount while open: %v, want ErrBusy", err)
		}
		if !isMounted(t, id) {
			t.Fatal("busy mount was removed")
		}
		f.Close()
		must(t, Unmount(t.Context(), id, Options{}))
		if isMounted(t, id) {
			t.Error("mount still in the table")
		}
	})
}

func TestUnmountInAnotherNamespace(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		holder := kerneltest.Start(t, "hold")
		must(t, os.Remove(s.source))
		here := inspect(t, s.target)
		state := inspectIn(t, holder.PID, s.target)
		if state.Same(here.ID) || !state.Deleted || !state.Gone {
			t.Fatalf("inspected from outside: %+v, same as here: %+v", state, here)
		}
		if err := Unmount(t.Context(), state.ID, Options{}); !errors.Is(err, ErrChanged) {
			t.Errorf("unmount from outside: %v, want ErrChanged", err)
		}
		ns, err := mountns.Of(holder.PID)
		must(t, err)
		must(t, ns.Do(func() error { return Unmount(t.Context(), state.ID, Options{}) }))
		if err := ns.Do(func() error { _, err := Inspect(s.target); return err }); !errors.Is(err, ErrNotMounted) {
			t.Errorf("inspect afterwards: %v, want ErrNotMounted", err)
		}
		if !isMounted(t, here.ID) {
			t.Error("mount of our own namespace is gone")
		}
	})
}

func TestUnmountRefusesWhatWasNotMeant(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		below := inspect(t, s.target).ID
		must(t, Bind(s.source, s.target))
		above := inspect(t, s.target).ID
		err := Unmount(t.Context(), below, Options{})
		var changed *ChangedError
		if !errors.Is(err, ErrChanged) || !errors.As(err, &changed) {
			t.Fatalf("unmount of the lower one: %v, want ErrChanged", err)
		}
		if !changed.Found.Same(above) || !changed.Want.Same(below) {
			t.Errorf("error names %v, %v", changed.Want, changed.Found)
		}
		must(t, Unmount(t.Context(), above, Options{}))
		if !isMounted(t, below) || isMounted(t, above) {
			t.Error("the wrong one was unmounted")
		}
	})
}

func TestUnmountAcceptsAnIDFromMountinfo(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		must(t, os.Remove(s.source))
		id := inspect(t, s.target).ID
		id.UniqueID = 0
		must(t, Unmount(t.Context(), id, Options{}))
		if isMounted(t, id) {
			t.Error("mount still in the table")
		}
	})
}

func TestUnmountRefusesMountWithMountsOnIt(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		s := newSceneOf(t, "dir", true)
		sub := filepath.Join(s.target, "sub")
		must(t, os.Mkdir(sub, 0o700))
		must(t, Tmpfs(sub, 1<<16))
		id, child := inspect(t, s.target).ID, inspect(t, sub).ID
		if err := Unmount(t.Context(), id, Options{}); !errors.Is(err, ErrBusy) {
			t.Errorf("unmount: %v, want ErrBusy", err)
		}
		if !isMounted(t, id) || !isMounted(t, child) {
			t.Error("something was unmounted")
		}
	})
}

func TestUnmountAsksTheCallerLast(t *testing.T) {
	onEverySource(t, func(t *testing.T) {
		for _, deleted := range []bool{true, false} {
			s := newScene(t)
			if deleted {
				must(t, os.Remove(s.source))
			}
			id := inspect(t, s.target).ID
			refusal := errors.New("healthy after all")
			asked := 0
			err := Unmount(t.Context(), id, Options{Check: func(st State) error {
				asked++
				if !st.Same(id) || st.Deleted != deleted {
					t.Errorf("asked about %+v", st)
				}
				return refusal
			}})
			if !errors.Is(err, refusal) || asked != 1 || !isMounted(t, id) {
				t.Errorf("error %v, asked %d times, mounted %v", err, asked, isMounted(t, id))
			}
		}
	})
}

func TestUnmountObeysItsContext(t *testing.T) {
	s := newScene(t)
	must(t, os.Remove(s.source))
	id := inspect(t, s.target).ID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Unmount(ctx, id, Options{}); !errors.Is(err, context.Canceled) || !isMounted(t, id) {
		t.Errorf("unmount: %v, want context.Canceled and nothing touched", err)
	}
}

func TestUnmountRefusesTheRoot(t *testing.T) {
	if err := Unmount(t.Context(), inspect(t, "/").ID, Options{}); !errors.Is(err, ErrBusy) {
		t.Errorf("unmount of the root: %v, want ErrBusy", err)
	}
}

// TestUnmountSpreadsToPeers shows the effect that State.Shared warns of.
func TestUnmountSpreadsToPeers(t *testing.T) {
	s := newScene(t)
	must(t, systest.UnmountPath(s.target, false))
	must(t, SetPropagation(s.dir, Shared, false))
	copied := t.TempDir()
	must(t, Bind(s.dir, copied))
	t.Cleanup(func() { systest.UnmountPath(copied, true) })
	must(t, SetPropagation(copied, Slave, false))
	must(t, Bind(s.source, s.target))
	here, there := inspect(t, s.target), inspect(t, filepath.Join(copied, "target"))
	if here.Shared == 0 || there.Master != here.Shared {
		t.Errorf("peer groups %d and %d (master %d), want the second to follow the first", here.Shared, there.Shared, there.Master)
	}
	must(t, Unmount(t.Context(), here.ID, Options{}))
	if isMounted(t, there.ID) {
		t.Error("copy still mounted: the unmount did not spread")
	}
}

// TestUnmountReportsLockedMounts: a mount that came from a more privileged
// namespace cannot be removed, and the error says so.
func TestUnmountReportsLockedMounts(t *testing.T) {
	s := newScene(t)
	must(t, os.Remove(s.source))
	a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "unmount", s.target)
	want := (&Error{Op: "unmount", Target: s.target, Err: sys.EINVAL}).Error()
	if a.Answer != want {
		t.Errorf("unmount in a user namespace: %s, want %s", a.Answer, want)
	}
}

// TestUnmountNeedsNoPrivilegeOutside runs a whole repair in a user namespace.
func TestUnmountNeedsNoPrivilegeOutside(t *testing.T) {
	dir := t.TempDir()
	a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "heal", dir)
	if a.Answer != "healed" {
		t.Errorf("repair in a user namespace: %s", a.Answer)
	}
}

// roleContext is for the roles.
var roleContext = context.Background() //nolint:forbidigo // they run in processes that have no test

func unmountRole(args []string, ready func(string)) error {
	st, err := Inspect(args[0])
	if err != nil {
		return err
	}
	if err := Unmount(roleContext, st.ID, Options{}); err != nil {
		ready(err.Error())
		return nil
	}
	ready("unmounted")
	return nil
}

func healRole(args []string, ready func(string)) error {
	source, target := filepath.Join(args[0], "source"), filepath.Join(args[0], "target")
	for _, step := range []func() error{
		func() error { return Tmpfs(args[0], 1<<20) },
		func() error { return os.WriteFile(source, nil, 0o600) },
		func() error { return os.WriteFile(target, nil, 0o600) },
		func() error { return Bind(source, target) },
		func() error { return os.Remove(source) },
		func() error {
			ns, err := mountns.Of(os.Getpid())
			if err != nil {
				return err
			}
			return ns.Do(func() error {
				st, err := Inspect(target)
				if err != nil {
					return err
				}
				return Unmount(roleContext, st.ID, Options{})
			})
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	ready("healed")
	return nil
}

// TestInspectInReadsNoTable has a mount inspected by a table that was read, as on a kernel that has nothing else.
func TestInspectInReadsNoTable(t *testing.T) {
	dir := t.TempDir()
	must(t, Tmpfs(dir, 1<<20))
	t.Cleanup(func() { _ = systest.UnmountPath(dir, true) })
	want, err := Inspect(dir)
	must(t, err)
	own, err := mountns.Self()
	must(t, err)
	table := sync.OnceValues(readOwnTable)
	_, err = table()
	must(t, err)
	withSource(t, tableSource{}, func(t *testing.T) {
		reads, stop := mountns.CountReads(own)
		defer stop()
		got, err := InspectIn(dir, table)
		if must(t, err); !got.Same(want.ID) {
			t.Errorf("found %v, want %v", got.ID, want.ID)
		}
		if n := reads(); n != 0 {
			t.Errorf("the table was read %d times, want never", n)
		}
	})
}
