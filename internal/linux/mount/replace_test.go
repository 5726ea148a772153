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

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// replacementFiles is a file system with a file and a directory that replace others.
type replacementFiles struct {
	root, file, dir string
}

func newReplacementFiles(t testing.TB) replacementFiles {
	t.Helper()
	root := t.TempDir()
	must(t, Tmpfs(root, 1<<20))
	t.Cleanup(func() { systest.UnmountPath(root, true) })
	f := replacementFiles{root: root, file: filepath.Join(root, "file"), dir: filepath.Join(root, "dir")}
	must(t, os.Mkdir(f.dir, 0o700))
	for _, name := range []string{f.file, filepath.Join(f.dir, "name")} {
		must(t, os.WriteFile(name, []byte("fresh"), 0o600))
	}
	return f
}

// replacementFor is the replacement of a directory or a file.
func (f replacementFiles) replacementFor(dir bool) string {
	if dir {
		return f.dir
	}
	return f.file
}

func clone(t testing.TB, path string) *sys.FD {
	t.Helper()
	fd, err := sys.Lookup(path)
	must(t, err)
	defer fd.Close()
	tree, err := sys.CloneTree(fd)
	must(t, err)
	t.Cleanup(func() { tree.Close() })
	return tree
}

// showsFile reports whether both paths lead to one file, without asking a server.
func showsFile(t testing.TB, point, path string) bool {
	t.Helper()
	inode := func(path string) sys.Stat {
		fd, err := sys.Lookup(path)
		must(t, err)
		defer fd.Close()
		st, err := fd.Stat(sys.StatIno)
		must(t, err)
		return st
	}
	a, b := inode(point), inode(path)
	return a.Ino == b.Ino && a.Major == b.Major && a.Minor == b.Minor
}

// limit is limitTree for tests.
func limit(t testing.TB, tree *sys.FD, attr sys.MountAttr) {
	t.Helper()
	must(t, sys.OnThread(func() error { return limitTree(tree, attr) }))
}

// putBeneath is the first half of Replace.
func putBeneath(t testing.TB, id ID, tree, at *sys.FD) {
	t.Helper()
	a := &attachment{mountTarget: &mountTarget{id: id}}
	must(t, a.startOnThread(t.Context(), func() error {
		if err := a.openDirectory(); err != nil {
			return err
		}
		defer a.dir.Close()
		return a.attachAtPoint(tree, at, true)
	}))
}

// countMountsAt counts the mounts at a point.
func countMountsAt(t testing.TB, point string) int {
	t.Helper()
	mounts, err := mountns.Table(0)
	must(t, err)
	return len(mounts.All(point))
}

func openFile(t testing.TB, path string) *sys.FD {
	t.Helper()
	fd, err := sys.Lookup(path)
	must(t, err)
	t.Cleanup(func() { fd.Close() })
	return fd
}

// forEachMethod runs a test with every way of putting a tree beneath a mount, the last as kernels before 5.12 have to.
func forEachMethod(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Run("by the call", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasMoveBeneath)
		test(t)
	})
	t.Run("by propagation", func(t *testing.T) {
		kerneltest.Needs(t, sys.HasMountSetattr)
		onlySpread = true
		defer func() { onlySpread = false }()
		test(t)
	})
	t.Run("by propagation and mountinfo and remounts", func(t *testing.T) {
		onlySpread, noSetAttrKernels = true, true
		defer func() { onlySpread, noSetAttrKernels = false, false }()
		withSource(t, tableSource{}, test)
	})
}

// onlyKernel is for tests that need unique numbers of mounts.
func onlyKernel(t testing.TB) {
	t.Helper()
	kerneltest.Needs(t, sys.HasStatmount)
	kerneltest.Needs(t, sys.HasMoveBeneath)
}

// TestReplaceConformance replaces mounts in every state that a bind mount's
// source can be in, idle and in use, through every source of knowledge.
func TestReplaceConformance(t *testing.T) { forEachMethod(t, replaceConformance) }

func replaceConformance(t *testing.T) {
	f := newReplacementFiles(t)
	for _, inUse := range []bool{false, true} {
		for name, knowledge := range map[string]mountSource{"mountinfo": tableSource{}, "kernel": nil} {
			t.Run(fmt.Sprintf("%s, in use %v", name, inUse), func(t *testing.T) {
				if knowledge == nil {
					kerneltest.Needs(t, sys.HasStatmount)
				}
				kerneltest.EachSource(t, func(t *testing.T, s *kerneltest.Source) {
					s.Happen(t)
					withSource(t, knowledge, func(t *testing.T) { replaceSource(t, s, f.replacementFor(s.Dir), inUse) })
				})
			})
		}
	}
}

func replaceSource(t *testing.T, s *kerneltest.Source, path string, inUse bool) {
	if inUse {
		openFile(t, s.Point)
	}
	id := inspect(t, s.Point).ID
	err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, path)})
	must(t, err)
	if isMounted(t, id) || countMountsAt(t, s.Point) != 1 || !showsFile(t, s.Point, path) {
		t.Errorf("old one mounted %v, layers %d, fresh %v", isMounted(t, id), countMountsAt(t, s.Point), showsFile(t, s.Point, path))
	}
	must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, path)}))
	if countMountsAt(t, s.Point) != 1 {
		t.Errorf("%d layers after the second call, want 1", countMountsAt(t, s.Point))
	}
	must(t, systest.UnmountPath(s.Point, true)) // for the next source of knowledge
}

// TestReplaceKeepsLimits: the tree has the limits of the mount and its own limits.
func TestReplaceKeepsLimits(t *testing.T) { forEachMethod(t, replaceKeepsLimits) }

func replaceKeepsLimits(t *testing.T) {
	f := newReplacementFiles(t)
	for name, tc := range map[string]struct {
		old, tree, want sys.MountAttr
	}{
		"none":        {0, 0, 0},
		"read-only":   {sys.AttrReadOnly, 0, sys.AttrReadOnly},
		"all of them": {sys.AttrReadOnly | sys.AttrNoSUID | sys.AttrNoDev | sys.AttrNoExec | sys.AttrNoSymfollow, 0, sys.AttrReadOnly | sys.AttrNoSUID | sys.AttrNoDev | sys.AttrNoExec | sys.AttrNoSymfollow},
		"its own":     {sys.AttrNoSUID, sys.AttrReadOnly, sys.AttrNoSUID | sys.AttrReadOnly},
		"noatime":     {sys.AttrNoATime, sys.AttrNoDirATime, sys.AttrNoATime},
		"strictatime": {sys.AttrStrictATime | sys.AttrNoDirATime, sys.AttrNoATime, sys.AttrStrictATime | sys.AttrNoDirATime},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			must(t, systest.UnmountPath(s.target, false))
			limited, tree := clone(t, s.source), clone(t, f.file)
			limit(t, limited, tc.old)
			limit(t, tree, tc.tree)
			target := openFile(t, s.target)
			must(t, sys.Attach(limited, target, false))
			st := inspect(t, s.target)
			if st.Attr != tc.old {
				t.Fatalf("attributes %#x, want %#x", st.Attr, tc.old)
			}
			must(t, Replace(t.Context(), st.ID, ReplaceOptions{Tree: tree}))
			onEverySource(t, func(t *testing.T) {
				if got := inspect(t, s.target); got.Attr != tc.want || got.Shared != 0 || got.Master != 0 {
					t.Errorf("attributes %#x, shared %d %d, want %#x and private", got.Attr, got.Shared, got.Master, tc.want)
				}
			})
		})
	}
}

// TestReplaceUnderUsers: who has files open in the mount, or works in it, keeps
// them, and every other process finds the tree.
func TestReplaceUnderUsers(t *testing.T) { forEachMethod(t, replaceUnderUsers) }

func replaceUnderUsers(t *testing.T) {
	f := newReplacementFiles(t)
	s := newSceneOf(t, "dir", true)
	old := filepath.Join(s.target, "old")
	file, err := os.Create(old)
	must(t, err)
	defer file.Close()
	worker := kerneltest.StartWith(t, nil, "work", s.target)
	id := inspect(t, s.target).ID
	must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.dir)}))
	_, err = file.WriteString("more")
	must(t, err)
	if text, err := os.ReadFile(filepath.Join(s.source, "old")); err != nil || string(text) != "more" {
		t.Errorf("written to the open file: %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(s.target, "name")); err != nil || string(text) != "fresh" {
		t.Errorf("read at the point: %q, %v", text, err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/cwd/old", worker.PID)); err != nil {
		t.Errorf("working directory: %v", err)
	}
	if isMounted(t, id) || countMountsAt(t, s.target) != 1 {
		t.Errorf("mounted %v, %d layers", isMounted(t, id), countMountsAt(t, s.target))
	}
}

// TestReplaceDirectoryCreatedAgain: the mount shows a directory whose name was taken
// by another. It is alive, and carries no mark where it was moved away.
func TestReplaceDirectoryCreatedAgain(t *testing.T) { forEachMethod(t, replaceDirectoryMadeAnew) }

func replaceDirectoryMadeAnew(t *testing.T) {
	for name, away := range map[string]func(string) error{
		"moved away": func(path string) error { return os.Rename(path, path+".old") },
		"removed":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSceneOf(t, "dir", true)
			openFile(t, s.target)
			must(t, away(s.source))
			must(t, os.Mkdir(s.source, 0o700))
			id := inspect(t, s.target).ID
			must(t, Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, s.source)}))
			if !showsFile(t, s.target, s.source) || countMountsAt(t, s.target) != 1 {
				t.Errorf("fresh %v, %d layers", showsFile(t, s.target, s.source), countMountsAt(t, s.target))
			}
		})
	}
}

// TestReplaceInAnotherNamespace clones here and replaces there.
func TestReplaceInAnotherNamespace(t *testing.T) { forEachMethod(t, replaceInAnotherNamespace) }

func replaceInAnotherNamespace(t *testing.T) {
	f := newReplacementFiles(t)
	s := newScene(t)
	openFile(t, s.target)
	holder := kerneltest.Start(t, "hold")
	ns, err := mountns.Of(holder.PID)
	must(t, err)
	here := inspect(t, s.target)
	there := inspectIn(t, holder.PID, s.target)
	tree := clone(t, f.file)
	must(t, ns.Do(func() error { return Replace(t.Context(), there.ID, ReplaceOptions{Tree: tree}) }))
	now := inspectIn(t, holder.PID, s.target)
	if now.Same(there.ID) || now.Root != "/file" || now.Shared != 0 || now.Master != 0 {
		t.Errorf("there is %+v, want the fresh file, private", now)
	}
	if !isMounted(t, here.ID) || showsFile(t, s.target, f.file) {
		t.Error("our own namespace has changed")
	}
}

func TestReplaceAsksTheCallerLast(t *testing.T) { forEachMethod(t, replaceAsksTheCallerLast) }

func replaceAsksTheCallerLast(t *testing.T) {
	f := newReplacementFiles(t)
	s := newScene(t)
	held := openFile(t, s.target)
	id := inspect(t, s.target).ID
	refusal := errors.New("healthy after all")
	refuse := func(st State) error {
		if !st.Same(id) {
			t.Errorf("asked about %+v", st)
		}
		return refusal
	}
	if err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file), Check: refuse}); !errors.Is(err, refusal) {
		t.Errorf("refused: %v", err)
	}
	if !isMounted(t, id) || countMountsAt(t, s.target) != 1 {
		t.Error("refused: something was changed")
	}
	// Refused later: nothing is removed.
	for asked := 2; asked <= 3; asked++ {
		n := 0
		err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file), Check: func(State) error {
			if n++; n == asked {
				return refusal
			}
			return nil
		}})
		now := inspect(t, s.target).ID
		id.Parent = now.Parent // which a tree may be by now
		if !errors.Is(err, refusal) || !now.Same(id) {
			t.Errorf("refused when asked for the %d. time: %v, there is %v now", asked, err, inspect(t, s.target))
		}
	}
	held.Close()
}

// TestReplaceEndsTheSame: an attempt that was cut short leaves its tree beneath the mount; the next attempt removes
// that.
func TestReplaceEndsTheSame(t *testing.T) { forEachMethod(t, replaceEndsTheSame) }

func replaceEndsTheSame(t *testing.T) {
	f := newReplacementFiles(t)
	for name, deleted := range map[string]bool{"deleted": true, "in use": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			if deleted {
				must(t, os.Remove(s.source))
			}
			held := openFile(t, s.target)
			st := inspect(t, s.target)
			tree := clone(t, f.file)
			limit(t, tree, st.Attr)
			putBeneath(t, st.ID, tree, held)
			tree.Close()
			must(t, Replace(t.Context(), st.ID, ReplaceOptions{Tree: clone(t, f.file)}))
			if countMountsAt(t, s.target) != 1 || !showsFile(t, s.target, f.file) {
				t.Errorf("%d layers, fresh %v", countMountsAt(t, s.target), showsFile(t, s.target, f.file))
			}
		})
	}
}
