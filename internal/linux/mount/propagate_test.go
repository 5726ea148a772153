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

// broken are mounts to replace below dir, at dir/point. Each has the content that a reader finds in it, and the content
// of its replacement; name is the file that is read below the point.
var broken = map[string]struct {
	dir      bool
	unlinked bool // the root is
	arrange  func(t *testing.T, point string)
	name     string
	old      error
}{
	"a file of a subPath that was removed": {unlinked: true, arrange: func(t *testing.T, point string) {
		bindAndRemove(t, filepath.Join(t.TempDir(), "key"), point)
	}},
	"a directory that was removed": {dir: true, unlinked: true, name: "name", old: os.ErrNotExist, arrange: func(t *testing.T, point string) {
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

// newParent makes a mount of that kind, which shares in that way, and gives it and a peer or master of it.
func newParent(t *testing.T, kind string, sharing Propagation) (dir, other string) {
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

var propagations = map[string]Propagation{"private": Private, "slave": Slave, "shared": Shared}

// TestReplaceUnderReaders: who reads at the place in a loop finds the old content and then the new, and nothing else.
func TestReplaceUnderReaders(t *testing.T) { forEachMethod(t, replaceUnderReaders) }

func replaceUnderReaders(t *testing.T) {
	for kind, b := range broken {
		for root := range roots {
			for name, sharing := range propagations {
				t.Run(kind+" in "+root+" "+name, func(t *testing.T) {
					dir, other := newParent(t, root, sharing)
					place := map[bool]string{true: "in/dir", false: "in/file"}[b.dir]
					point := filepath.Join(dir, place)
					b.arrange(t, point)
					t.Cleanup(func() { systest.UnmountPath(point, true) })
					f := newReplacementFiles(t)
					held := openFile(t, point)
					before := topMountAt(t, dir)
					watch := newReader(filepath.Join(point, b.name), b.old)
					watch.awaitReads(*readsEach)
					must(t, Replace(t.Context(), inspect(t, point).ID, ReplaceOptions{Tree: clone(t, f.replacementFor(b.dir))}))
					watch.awaitReads(*readsEach)
					got := watch.stopReading()
					t.Logf("%+v", got)
					if got.Failed == 0 || got.Fresh == 0 || got.Empty+got.Worse+got.Late != 0 {
						t.Errorf("reads: %+v", got)
					}
					held.Close()
					if now := topMountAt(t, dir); now.Shared != before.Shared || now.Master != before.Master {
						t.Errorf("the parent is %+v, and was %+v", now, before)
					}
					st := inspect(t, point)
					if countMountsAt(t, point) != 1 || !showsFile(t, point, f.replacementFor(b.dir)) || (st.Shared != 0) != (sharing == Shared) || st.Master != 0 {
						t.Errorf("%d layers, %+v", countMountsAt(t, point), st)
					}
					if sharing == Shared && !showsFile(t, filepath.Join(other, place), f.replacementFor(b.dir)) {
						t.Error("the peer of the parent has not followed")
					}
				})
			}
		}
	}
}

// topMountAt is the topmost mount at a point, by the table.
func topMountAt(t testing.TB, point string) mountinfo.Mount {
	t.Helper()
	mounts, err := mountns.Table(0)
	must(t, err)
	all := mounts.All(point)
	if len(all) == 0 {
		t.Fatalf("nothing is mounted at %q", point)
	}
	return all[len(all)-1]
}

// newReader is a reader that takes an error, or the content "old", for the mount before the replacement.
func newReader(name string, old error) *loopReader {
	return readInLoopFor(name, func(text []byte, err error) (was bool) {
		return err == nil && string(text) == "old" || old != nil && errors.Is(err, old)
	})
}

// spreadSteps are the calls of between, in their order.
var spreadSteps = []string{"shared", "cloned", "copied", "led", "found", "sharing", "attached", "spread", "aside"}

// TestSpreadKilled kills a process that replaces a mount between any two steps, and has another go on: it ends the
// same.
func TestSpreadKilled(t *testing.T) {
	forEachSpread(t, func(t *testing.T, k spreadCase) {
		killAndGoOn(t, k, newReplacementFiles(t).replacementFor(k.isDir))
	})
}

// spreadCase is a mount that is to be replaced, the step at which something happens, and how its parent shares.
type spreadCase struct {
	dir, point, step string
	sharing          Propagation
	isDir            bool
}

// forEachSpread runs a test for each kind of mount, each way in which its parent shares, and each step that this has.
func forEachSpread(t *testing.T, test func(t *testing.T, k spreadCase)) {
	for _, step := range spreadSteps {
		for name, sharing := range propagations {
			if sharing == Shared && (step == "shared" || step == "sharing") {
				continue // it is not made to share, as it does
			}
			for kind, b := range broken {
				if b.unlinked && (step == "sharing" || step == "aside") {
					continue // nothing can be mounted on it
				}
				t.Run(step+" "+name+" "+kind, func(t *testing.T) {
					dir, _ := newParent(t, "tmpfs", sharing)
					point := filepath.Join(dir, map[bool]string{true: "in/dir", false: "in/file"}[b.dir])
					b.arrange(t, point)
					t.Cleanup(func() {
						for systest.UnmountPath(point, true) == nil {
						}
					})
					openFile(t, point)
					test(t, spreadCase{dir, point, step, sharing, b.dir})
				})
			}
		}
	}
}

// TestSpreadMeetsAnother has another process remove the mount and put one of its own in its place, between any two steps.
// The other mount shows afterwards, and nothing has come to lie on it.
func TestSpreadMeetsAnother(t *testing.T) { forEachSpread(t, meetAnother) }

func meetAnother(t *testing.T, k spreadCase) {
	t.Helper()
	fresh, theirs := newReplacementFiles(t).replacementFor(k.isDir), newReplacementFiles(t).replacementFor(k.isDir)
	happened := false
	onlySpread, between = true, func(now string) {
		if now == k.step {
			elsewhere(func() {
				must(t, systest.UnmountPath(k.point, true))
				must(t, Bind(theirs, k.point))
			})
			happened = true
		}
	}
	defer func() { onlySpread, between = false, func(string) {} }()
	err := Replace(t.Context(), inspect(t, k.point).ID, ReplaceOptions{Tree: clone(t, fresh)})
	if !happened || !showsFile(t, k.point, theirs) {
		t.Errorf("replace: %v, another process has mounted %v, and its mount shows %v: %+v", err, happened, showsFile(t, k.point, theirs),
			topMountAt(t, k.point))
	}
}

func killAndGoOn(t *testing.T, k spreadCase, fresh string) {
	dir, point, step, sharing := k.dir, k.point, k.step, k.sharing
	before, id := topMountAt(t, dir), inspect(t, point).ID
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
	left := sharing != Shared && (step == "shared" || step == "cloned" || step == "copied" || step == "sharing")
	if now.Master != before.Master || (now.Shared != before.Shared) != left {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
	onlySpread = true
	defer func() { onlySpread = false }()
	must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, fresh)}))
	if isMounted(t, id) || countMountsAt(t, point) != 1 || !showsFile(t, point, fresh) {
		t.Errorf("mounted %v, %d layers", isMounted(t, id), countMountsAt(t, point))
	}
	parent := topMountAt(t, dir)
	if parent.Master != before.Master || (parent.Shared != before.Shared) != left {
		t.Errorf("the parent is %+v, and was %+v", parent, before)
	}
	if tree := topMountAt(t, point); (tree.Shared != 0) != (parent.Shared != 0) || tree.Master != 0 {
		t.Errorf("the tree is %+v on %+v", tree, parent)
	}
}

// waitForSharing waits until the mount at dir shares as it did, or for a second: the kernel takes down the namespace of
// a process that was killed after its parent has been told of it.
func waitForSharing(t *testing.T, dir string, before mountinfo.Mount) mountinfo.Mount {
	t.Helper()
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		now := topMountAt(t, dir)
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
			dir, _ := newParent(t, "tmpfs", Private)
			point := filepath.Join(dir, "in/dir")
			t.Cleanup(func() { systest.UnmountPath(point, true); systest.UnmountPath(point, true) })
			arrange(t, dir, point)
			openFile(t, point)
			id, was, before := inspect(t, point).ID, countMountsAt(t, point), topMountAt(t, dir)
			err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, newReplacementFiles(t).dir)})
			if !errors.Is(err, ErrBusy) || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("replace: %v, want busy and not supported", err)
			}
			if !isMounted(t, id) || countMountsAt(t, point) != was || topMountAt(t, dir) != before {
				t.Errorf("mounted %v, %d layers of %d, parent %+v of %+v", isMounted(t, id), countMountsAt(t, point), was, topMountAt(t, dir), before)
			}
		})
	}
}

// TestSpreadWhileCopied has another process copy the namespace between any two steps, and makes a mount on the parent's
// master. The parent shares afterwards as before, and has the new mount of its master.
func TestSpreadWhileCopied(t *testing.T) {
	for _, step := range spreadSteps {
		for name, sharing := range propagations {
			t.Run(step+" "+name, func(t *testing.T) {
				if sharing == Shared && (step == "shared" || step == "sharing") {
					return // it is not made to share, as it does
				}
				dir, master := newParent(t, "tmpfs", sharing)
				point, source := filepath.Join(dir, "in/file"), filepath.Join(t.TempDir(), "key")
				write(t, source)
				must(t, Bind(source, point))
				must(t, os.Rename(source, source+".old"))
				t.Cleanup(func() { systest.UnmountPath(point, true) })
				openFile(t, point)
				spreadWhile(t, dir, point, step, func() {
					kerneltest.Start(t, "follow")
					if sharing != Private {
						must(t, Tmpfs(filepath.Join(master, "in/dir"), 1<<16))
					}
				})
				if sharing != Private && countMountsAt(t, filepath.Join(dir, "in/dir")) != 1 {
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
	before, fresh := topMountAt(t, dir), newReplacementFiles(t).file
	must(t, Replace(t.Context(), inspect(t, point).ID, ReplaceOptions{Tree: clone(t, fresh)}))
	if !happened || countMountsAt(t, point) != 1 || !showsFile(t, point, fresh) {
		t.Errorf("something happened %v, %d layers, fresh %v", happened, countMountsAt(t, point), showsFile(t, point, fresh))
	}
	now, tree := topMountAt(t, dir), topMountAt(t, point)
	if (tree.Shared != 0) != (now.Shared != 0) || tree.Master != 0 {
		t.Errorf("the tree is %+v on %+v", tree, now)
	}
	// A copy made while the parent shares is the parent's master from then on, and has the one that it had.
	inherits := before.Master != 0 && now.Master != 0 && (step == "shared" || step == "cloned" || step == "copied" || step == "sharing")
	if now.Shared != before.Shared || now.Master != before.Master && !inherits {
		t.Errorf("the parent is %+v, and was %+v", now, before)
	}
}
