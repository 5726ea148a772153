// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// broken are mounts that are to be replaced below dir, at dir/point. Each gives what a reader finds in it, and what is
// to take its place; name is what is read below the point.
var broken = map[string]struct {
	dir     bool
	arrange func(t *testing.T, point string)
	name    string
	old     error
}{
	"a file of a subPath that was removed": {arrange: func(t *testing.T, point string) {
		bindAndRemove(t, filepath.Join(t.TempDir(), "key"), point)
	}},
	"a directory that was removed": {dir: true, name: "name", old: os.ErrNotExist, arrange: func(t *testing.T, point string) {
		source := filepath.Join(t.TempDir(), "dir")
		must(t, os.Mkdir(source, 0o700))
		must(t, Bind(source, point))
		must(t, os.Remove(source))
	}},
	"a directory that was moved away": {dir: true, name: "name", arrange: func(t *testing.T, point string) {
		source := filepath.Join(t.TempDir(), "dir")
		must(t, os.Mkdir(source, 0o700))
		must(t, os.WriteFile(filepath.Join(source, "name"), []byte("old"), 0o600))
		must(t, Bind(source, point))
		must(t, os.Rename(source, source+".old"))
	}},
	"a dead FUSE file system": {dir: true, name: "name", old: sys.ENOTCONN, arrange: func(t *testing.T, point string) {
		must(t, Bind(deadFUSE(t), point))
	}},
}

func bindAndRemove(t *testing.T, source, point string) {
	t.Helper()
	must(t, os.WriteFile(source, []byte("old"), 0o600))
	must(t, Bind(source, point))
	must(t, os.Remove(source))
}

// roots are kinds of mounts that have the point in them. The point shows "empty" when nothing is mounted there.
var roots = map[string]func(t *testing.T, dir string){
	"tmpfs": func(t *testing.T, dir string) { must(t, Tmpfs(dir, 1<<20)); makePoints(t, dir) },
	"overlay": func(t *testing.T, dir string) {
		layers := t.TempDir()
		must(t, Tmpfs(layers, 1<<20))
		t.Cleanup(func() { systest.UnmountPath(layers, true) })
		for _, name := range []string{"lower", "upper", "work"} {
			must(t, os.Mkdir(filepath.Join(layers, name), 0o700))
		}
		makePoints(t, filepath.Join(layers, "lower"))
		must(t, sys.NewMount("overlay", dir, "overlay",
			fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", layers)))
	},
	"read-only bind": func(t *testing.T, dir string) {
		whole := t.TempDir()
		must(t, Tmpfs(whole, 1<<20))
		t.Cleanup(func() { systest.UnmountPath(whole, true) })
		part := filepath.Join(whole, "part")
		must(t, os.Mkdir(part, 0o700))
		makePoints(t, part)
		must(t, Bind(part, dir))
		must(t, systest.RemountBindReadOnly(dir))
	},
}

func makePoints(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(dir, "in", "dir"), 0o700))
	for _, name := range []string{"in/file", "in/dir/name"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("empty"), 0o600))
	}
}

// parentOf makes a mount of that kind, which shares in that way, and gives it and a peer or master of it.
func parentOf(t *testing.T, kind string, sharing Propagation) (dir, other string) {
	t.Helper()
	dir, other = t.TempDir(), t.TempDir()
	roots[kind](t, dir)
	t.Cleanup(func() { systest.UnmountPath(dir, true) })
	if sharing == Private {
		return dir, other
	}
	must(t, SetPropagation(dir, Shared, false))
	must(t, Bind(dir, other))
	t.Cleanup(func() { systest.UnmountPath(other, true) })
	must(t, SetPropagation(dir, sharing, false))
	return dir, other
}

var sharings = map[string]Propagation{"private": Private, "slave": Slave, "shared": Shared}

// TestReplaceUnderReaders: who reads at the place in a loop finds the old content and then the new, and nothing else.
func TestReplaceUnderReaders(t *testing.T) { eachWay(t, replaceUnderReaders) }

func replaceUnderReaders(t *testing.T) {
	for kind, b := range broken {
		for root := range roots {
			for name, sharing := range sharings {
				t.Run(kind+" in "+root+" "+name, func(t *testing.T) {
					dir, other := parentOf(t, root, sharing)
					place := map[bool]string{true: "in/dir", false: "in/file"}[b.dir]
					point := filepath.Join(dir, place)
					b.arrange(t, point)
					t.Cleanup(func() { systest.UnmountPath(point, true) })
					f := newFresh(t)
					held := use(t, point)
					before := lineAt(t, dir)
					watch := watchFor(filepath.Join(point, b.name), b.old)
					watch.await(*readsEach)
					must(t, Replace(t.Context(), inspect(t, point).ID, ReplaceOptions{Tree: clone(t, f.like(b.dir))}))
					watch.await(*readsEach)
					got := watch.end()
					t.Logf("%+v", got)
					if got.Failed == 0 || got.Fresh == 0 || got.Empty+got.Worse+got.Late != 0 {
						t.Errorf("reads: %+v", got)
					}
					held.Close()
					if now := lineAt(t, dir); now.Shared != before.Shared || now.Master != before.Master {
						t.Errorf("the parent is %+v, and was %+v", now, before)
					}
					st := inspect(t, point)
					if layers(t, point) != 1 || !shows(t, point, f.like(b.dir)) || (st.Shared != 0) != (sharing == Shared) || st.Master != 0 {
						t.Errorf("%d layers, %+v", layers(t, point), st)
					}
					if sharing == Shared && !shows(t, filepath.Join(other, place), f.like(b.dir)) {
						t.Error("the peer of the parent has not followed")
					}
				})
			}
		}
	}
}

// lineAt is what the table says about the topmost mount at a point.
func lineAt(t testing.TB, point string) mountinfo.Mount {
	t.Helper()
	mounts, err := mountns.Table(0)
	must(t, err)
	all := mounts.All(point)
	if len(all) == 0 {
		t.Fatalf("nothing is mounted at %q", point)
	}
	return all[len(all)-1]
}

// watchFor is a reader for which an error, or the content "old", is what was there before.
func watchFor(name string, old error) *reader {
	return readInLoopFor(name, func(text []byte, err error) (was bool) {
		return err == nil && string(text) == "old" || old != nil && errors.Is(err, old)
	})
}

// TestSpreadKilled kills a process that replaces a mount between any two steps, and has another go on: it ends the same.
func TestSpreadKilled(t *testing.T) {
	for _, step := range []string{"shared", "cloned", "copied", "led", "attached", "spread"} {
		for name, sharing := range sharings {
			if sharing == Shared && step == "shared" {
				continue // it is not made to share, as it does
			}
			for kind, b := range broken {
				t.Run(step+" "+name+" "+kind, func(t *testing.T) {
					dir, _ := parentOf(t, "tmpfs", sharing)
					point := filepath.Join(dir, map[bool]string{true: "in/dir", false: "in/file"}[b.dir])
					b.arrange(t, point)
					t.Cleanup(func() { systest.UnmountPath(point, true) })
					killAndGoOn(t, killing{dir, point, newFresh(t).like(b.dir), step, sharing})
				})
			}
		}
	}
}

// killing is what happens to whom, and when.
type killing struct {
	dir, point, fresh, step string
	sharing                 Propagation
}

func killAndGoOn(t *testing.T, k killing) {
	dir, point, fresh, step, sharing := k.dir, k.point, k.fresh, k.step, k.sharing
	use(t, point)
	before, id := lineAt(t, dir), inspect(t, point).ID
	dying, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], point, fresh, step}, &os.ProcAttr{
		Env: kerneltest.RoleEnv("die"), Files: []*os.File{nil, nil, os.Stderr},
	})
	must(t, err)
	state, err := dying.Wait()
	must(t, err)
	if state.String() != "signal: killed" {
		t.Fatalf("process that was to be killed when it had %s: %v", step, state)
	}
	now := waitForSharing(t, dir, before)
	// Between these calls only the process itself knows that it has made the parent share.
	left := sharing != Shared && (step == "shared" || step == "cloned" || step == "copied")
	if now.Master != before.Master || (now.Shared != before.Shared) != left {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
	onlySpread = true
	defer func() { onlySpread = false }()
	must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, fresh)}))
	if mounted(t, id) || layers(t, point) != 1 || !shows(t, point, fresh) {
		t.Errorf("mounted %v, %d layers", mounted(t, id), layers(t, point))
	}
	if now := lineAt(t, dir); now.Master != before.Master || (now.Shared != before.Shared) != left {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
}

// waitForSharing waits until the mount at dir shares as it did, or for a second: the kernel takes down the namespace of a
// process that was killed after its parent has been told of it.
func waitForSharing(t *testing.T, dir string, before mountinfo.Mount) mountinfo.Mount {
	t.Helper()
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		now := lineAt(t, dir)
		if now.Shared == before.Shared && now.Master == before.Master || time.Now().After(end) {
			return now
		}
	}
}

// dieRole replaces a mount in the test's own namespace and kills itself at a step.
func dieRole(args []string, _ func(string)) error {
	onlySpread = true
	between = func(step string) {
		if step == args[2] {
			if p, err := os.FindProcess(os.Getpid()); err == nil {
				_ = p.Kill()
			}
			select {}
		}
	}
	from, err := sys.Lookup(args[1])
	if err != nil {
		return err
	}
	tree, err := sys.CloneTree(from)
	if err != nil {
		return err
	}
	st, err := Inspect(args[0])
	if err != nil {
		return err
	}
	return Replace(roleContext, st.ID, ReplaceOptions{Tree: tree})
}

// TestSpreadRefuses: in each of these cases nothing is changed by propagation.
func TestSpreadRefuses(t *testing.T) {
	onlySpread = true
	defer func() { onlySpread = false }()
	for name, arrange := range map[string]func(t *testing.T, dir, point string){
		"another mount lies beneath": func(t *testing.T, _, point string) {
			must(t, Bind(t.TempDir(), point))
			must(t, Bind(t.TempDir(), point))
		},
		"the parent is unbindable": func(t *testing.T, dir, point string) {
			must(t, Bind(t.TempDir(), point))
			must(t, SetPropagation(dir, Unbindable, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := parentOf(t, "tmpfs", Private)
			point := filepath.Join(dir, "in/dir")
			t.Cleanup(func() { systest.UnmountPath(point, true); systest.UnmountPath(point, true) })
			arrange(t, dir, point)
			use(t, point)
			id, was, before := inspect(t, point).ID, layers(t, point), lineAt(t, dir)
			err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, newFresh(t).dir)})
			if !errors.Is(err, ErrBusy) || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("replace: %v, want busy and not supported", err)
			}
			if !mounted(t, id) || layers(t, point) != was || lineAt(t, dir) != before {
				t.Errorf("mounted %v, %d layers of %d, parent %+v of %+v", mounted(t, id), layers(t, point), was, lineAt(t, dir), before)
			}
		})
	}
}

// TestSpreadWhileCopied has another process copy the namespace between any two steps, and the parent's master have
// something mounted. The parent shares afterwards as it did, and has got what its master has.
func TestSpreadWhileCopied(t *testing.T) {
	for _, step := range []string{"shared", "cloned", "copied", "led", "attached", "spread"} {
		for name, sharing := range sharings {
			t.Run(step+" "+name, func(t *testing.T) {
				if sharing == Shared && step == "shared" {
					return // it is not made to share, as it does
				}
				dir, master := parentOf(t, "tmpfs", sharing)
				point := filepath.Join(dir, "in/file")
				bindAndRemove(t, filepath.Join(t.TempDir(), "key"), point)
				t.Cleanup(func() { systest.UnmountPath(point, true) })
				spreadWhile(t, dir, point, step, func() {
					kerneltest.Start(t, "follow")
					if sharing != Private {
						must(t, Tmpfs(filepath.Join(master, "in/dir"), 1<<16))
					}
				})
				if sharing != Private && layers(t, filepath.Join(dir, "in/dir")) != 1 {
					t.Error("what the parent's master has got did not arrive")
				}
				systest.UnmountPath(filepath.Join(master, "in/dir"), true)
			})
		}
	}
}

// spreadWhile replaces the mount at point, and has something happen in the test's namespace at a step.
func spreadWhile(t *testing.T, dir, point, step string, act func()) {
	t.Helper()
	happened := false
	onlySpread, between = true, func(now string) {
		if now == step {
			elsewhere(act)
			happened = true
		}
	}
	defer func() { onlySpread, between = false, func(string) {} }()
	before, fresh := lineAt(t, dir), newFresh(t).file
	must(t, Replace(t.Context(), inspect(t, point).ID, ReplaceOptions{Tree: clone(t, fresh)}))
	if !happened || layers(t, point) != 1 || !shows(t, point, fresh) {
		t.Errorf("something happened %v, %d layers, fresh %v", happened, layers(t, point), shows(t, point, fresh))
	}
	now := lineAt(t, dir)
	// A copy made while the parent shares is the parent's master from then on, and has the one that it had.
	inherits := before.Master != 0 && now.Master != 0 && (step == "shared" || step == "cloned" || step == "copied")
	if now.Shared != before.Shared || now.Master != before.Master && !inherits {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
}
