// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package states

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// State is what a volume can get into, and what the kernel says of the mount at Target then.
type State struct {
	Name string
	// Code is that of the fault; empty: healthy.
	Code fault.Code
	// Life is how the mount answers.
	Life Life
	// Bindable is whether the mount can be bound elsewhere, and Deleted whether the mount table has the kernel's mark.
	Bindable, Deleted bool
	// Staged is whether what is at Staging answers.
	Staged bool
	// Mute is whether the mount by itself looks healthy: only the mount at Staging shows the fault.
	Mute bool
	// Build brings about the state at a place that is new.
	Build func(t testing.TB, p *Place)
	// Below is the volume's folder below Staging.
	Below string
}

// Life is how a mount answers.
type Life int

// How mounts answer.
const (
	Alive Life = iota
	Dead       // with an error that says that no process serves it
	Hung       // not at all
)

const (
	one = "vol1"
	two = "csi/vol1"
)

// All are the states that can be reached.
func All() []State {
	const dead, gone, hung = fault.DisconnectedFUSE, fault.DeletedVolumeSource, fault.HungMount
	return []State{
		{Name: "healthy", Bindable: true, Staged: true, Build: mounted, Below: two},
		{Name: "Z", Code: dead, Life: Dead, Bindable: true, Build: killed, Below: two},
		{Name: "Y", Code: dead, Life: Dead, Deleted: true, Build: killedAndLookedUp, Below: one},
		{Name: "Y2", Code: dead, Life: Dead, Build: killedAndParentLookedUp, Below: two},
		{Name: "X", Code: gone, Deleted: true, Staged: true, Build: replaced, Below: two},
		{Name: "X2", Code: gone, Deleted: true, Staged: true, Build: removedElsewhere, Below: two},
		{Name: "X2e", Code: gone, Bindable: true, Staged: true, Mute: true, Build: removedEmpty, Below: two},
		{Name: "X3", Code: gone, Deleted: true, Staged: true, Build: removedHere, Below: two},
		{Name: "W", Code: gone, Staged: true, Build: parentRenamed, Below: two},
		{Name: "E", Code: dead, Life: Dead, Bindable: true, Build: evicted, Below: one},
		{Name: "H", Code: hung, Life: Hung, Build: frozen, Below: one},
		{Name: "V", Code: gone, Bindable: true, Staged: true, Mute: true, Build: boundUnmounted, Below: one},
		{Name: "V2", Code: gone, Deleted: true, Build: boundUnmountedAndRemoved, Below: one},
	}
}

// mounted is as it should be.
func mounted(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
}

// killed: no process serves the volume any more, and none has touched it since.
func killed(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	must(t, p.Client.Kill())
}

// killedAndLookedUp: a process has looked the folder up through the dead mount at Staging.
func killedAndLookedUp(t testing.TB, p *Place) {
	t.Helper()
	killed(t, p)
	lookUpDead(t, filepath.Join(p.Staging, p.Below))
}

// killedAndParentLookedUp: it was not the folder but the one above it, so that the kernel has no mark on the former.
func killedAndParentLookedUp(t testing.TB, p *Place) {
	t.Helper()
	killed(t, p)
	lookUpDead(t, filepath.Dir(filepath.Join(p.Staging, p.Below)))
}

func lookUpDead(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("look up %q: %v, want ENOTCONN", path, err)
	}
}

// replaced: another client has renamed the folder, and has made one of the same name.
func replaced(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	dir := filepath.Join(p.other, p.Below)
	must(t, os.Rename(dir, dir+".old"))
	p.write(t, p.Below, Fresh)
	kerneltest.Await(t, "the kernel has seen the new folder", func() bool {
		_, _ = os.ReadDir(filepath.Join(p.Staging, p.Below)) // it is the looking that counts
		return p.Marked(t)
	})
}

// removedElsewhere: another client has removed the folder and what was in it, and no process has looked for it since.
func removedElsewhere(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	must(t, os.RemoveAll(filepath.Join(p.other, p.Below)))
	kerneltest.Await(t, "the kernel has marked the folder", func() bool { return p.Marked(t) })
}

// removedEmpty: there was nothing in the folder, so that the kernel was not told.
func removedEmpty(t testing.TB, p *Place) {
	t.Helper()
	must(t, os.Remove(filepath.Join(p.other, p.Below, Data)))
	p.Mount(t)
	must(t, os.Remove(filepath.Join(p.other, p.Below)))
	kerneltest.Await(t, "the folder has no name", func() bool { return p.names(t) == 0 })
}

// Met returns s as the kernel has it at p. Any process of the machine that looks up the folder of a mute state through
// Staging lets the kernel learn that the folder is gone: the mark and the refusal to bind are there from then on.
func (s State) Met(t testing.TB, p *Place) State {
	t.Helper()
	if s.Mute && p.Marked(t) {
		s.Mute, s.Deleted, s.Bindable = false, true, false
	}
	return s
}

// removedHere: it was removed through the mount at Staging.
func removedHere(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	must(t, os.RemoveAll(filepath.Join(p.Staging, p.Below)))
}

// parentRenamed: another client has renamed the folder above it. It answers, and everything in it can be used by those
// who have it.
func parentRenamed(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	parent := filepath.Dir(p.Below)
	must(t, os.Rename(filepath.Join(p.other, parent), filepath.Join(p.other, parent+".old")))
	kerneltest.Await(t, "the kernel misses the parent", func() bool {
		_, err := os.Lstat(filepath.Join(p.Staging, parent))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// evicted: ceph-fuse lives, but the MDS has ended its session for good.
func evicted(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	must(t, p.Client.Evict(t.Context()))
	kerneltest.Await(t, "the client knows", func() bool {
		_, err := os.Stat(p.Target)
		return err != nil
	})
}

// frozen: ceph-fuse lives, but does not answer.
func frozen(t testing.TB, p *Place) {
	t.Helper()
	p.Mount(t)
	must(t, p.Client.Freeze())
}

// boundUnmounted: the folder was bound while the file system was not mounted, from the node's own disk; then it was.
func boundUnmounted(t testing.TB, p *Place) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(p.Staging, p.Below), 0o755))
	p.bind(t)
	p.Stage(t)
}

// boundUnmountedAndRemoved: the folder on the node's own disk was then removed.
func boundUnmountedAndRemoved(t testing.TB, p *Place) {
	t.Helper()
	boundUnmounted(t, p)
	closeClient(t, p.Client)
	must(t, os.RemoveAll(filepath.Join(p.Staging, p.Below)))
}
