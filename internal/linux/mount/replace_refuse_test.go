// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestReplaceRefuses holds that nothing changes in each of these cases.
func TestReplaceRefuses(t *testing.T) { forEachMethod(t, replaceRefuses) }

func replaceRefuses(t *testing.T) {
	f := newReplacementFiles(t)
	for name, tc := range map[string]struct {
		arrange func(t *testing.T, s bindScene) *sys.FD
		want    error
	}{
		"a mount on it": {func(t *testing.T, s bindScene) *sys.FD {
			must(t, os.Mkdir(filepath.Join(s.source, "sub"), 0o700))
			must(t, Tmpfs(filepath.Join(s.target, "sub"), 1<<16))
			return clone(t, f.dir)
		}, ErrBusy},
		"another on top": {func(t *testing.T, s bindScene) *sys.FD {
			must(t, Bind(s.source, s.target))
			return clone(t, f.dir)
		}, ErrChanged},
		"a file for a directory":  {func(t *testing.T, _ bindScene) *sys.FD { return clone(t, f.file) }, sys.ENOTDIR},
		"nothing":                 {func(*testing.T, bindScene) *sys.FD { return nil }, sys.EBADF},
		"what is mounted already": {func(t *testing.T, _ bindScene) *sys.FD { return openFile(t, f.root) }, sys.EINVAL},
		"what is no mount's root": {func(t *testing.T, _ bindScene) *sys.FD { return openFile(t, f.dir) }, sys.EINVAL},
		"a source that is gone": {func(t *testing.T, s bindScene) *sys.FD {
			gone := filepath.Join(s.dir, "gone")
			must(t, os.Mkdir(gone, 0o700))
			tree := clone(t, gone)
			must(t, os.Remove(gone))
			return tree
		}, sys.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSceneOf(t, "old", true)
			id := inspect(t, s.target).ID
			tree := tc.arrange(t, s)
			was := countMountsAt(t, s.target)
			if err := Replace(t.Context(), id, ReplaceOptions{Tree: tree}); !errors.Is(err, tc.want) {
				t.Errorf("replace: %v, want %v", err, tc.want)
			}
			if !isMounted(t, id) || countMountsAt(t, s.target) != was {
				t.Errorf("mounted %v, %d layers of %d", isMounted(t, id), countMountsAt(t, s.target), was)
			}
			inspect(t, f.root)
		})
	}
}

func TestReplaceObeysItsContext(t *testing.T) {
	s := newScene(t)
	id := inspect(t, s.target).ID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Replace(ctx, id, ReplaceOptions{}); !errors.Is(err, context.Canceled) || !isMounted(t, id) {
		t.Errorf("replace: %v, want context.Canceled and nothing touched", err)
	}
}

// TestReplaceWhatIsGone: without the mount there is nothing to be replaced, and
// nothing is mounted.
func TestReplaceWhatIsGone(t *testing.T) {
	f := newReplacementFiles(t)
	onEverySource(t, func(t *testing.T) {
		s := newScene(t)
		id := inspect(t, s.target).ID
		must(t, systest.UnmountPath(s.target, false))
		if err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file)}); !errors.Is(err, ErrNotMounted) {
			t.Errorf("replace: %v, want ErrNotMounted", err)
		}
		if countMountsAt(t, s.target) != 0 {
			t.Error("something was mounted")
		}
		must(t, Bind(s.source, s.target))
		if err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file)}); !errors.Is(err, ErrChanged) {
			t.Errorf("replace: %v, want ErrChanged", err)
		}
	})
}

// TestReplaceReportsLockedMounts: a mount that came from a more privileged
// namespace stays, and the error says why.
func TestReplaceReportsLockedMounts(t *testing.T) { forEachMethod(t, replaceReportsLockedMounts) }

func replaceReportsLockedMounts(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		s := newScene(t)
		if deleted {
			must(t, os.Remove(s.source))
		}
		a := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "replace", s.target, t.TempDir())
		if !strings.Contains(a.Answer, "locked in place by the kernel: "+sys.EINVAL.Error()) || !strings.HasSuffix(a.Answer, "1 layers") {
			t.Errorf("replace in a user namespace: %s", a.Answer)
		}
	}
}

// TestReplaceWithPropagation replaces below parents that share, here and in
// namespaces that follow.
func TestReplaceWithPropagation(t *testing.T) { forEachMethod(t, replaceWithPropagation) }

func replaceWithPropagation(t *testing.T) {
	for name, tc := range map[string]struct {
		parent Propagation
		role   string // of the namespace that was copied from ours
		spread bool   // the tree is to be there as well
	}{
		"private":                           {Private, "follow", false},
		"shared with a peer":                {Shared, "follow", true},
		"shared with a slave":               {Shared, "slave", true},
		"shared, and the other is private":  {Shared, "hold", false},
		"slave itself, with its own copies": {Slave, "slave", false},
	} {
		for _, used := range []string{"nowhere", "here", "there"} {
			t.Run(name+", in use "+used, func(t *testing.T) {
				replaceShared(t, tc.parent, tc.role, tc.spread, used)
			})
		}
	}
}

func replaceShared(t *testing.T, parent Propagation, role string, spread bool, used string) {
	f := newReplacementFiles(t)
	s := newScene(t)
	must(t, systest.UnmountPath(s.target, false))
	must(t, SetPropagation(s.dir, Shared, false))
	if parent == Slave {
		master := t.TempDir()
		must(t, Bind(s.dir, master))
		t.Cleanup(func() { systest.UnmountPath(master, true) })
	}
	must(t, SetPropagation(s.dir, parent, false))
	must(t, Bind(s.source, s.target))
	other := kerneltest.Start(t, role)
	switch used {
	case "here":
		openFile(t, s.target)
	case "there":
		fd, err := mountns.Lookup(other.PID, s.target)
		must(t, err)
		defer fd.Close()
	}
	here := inspect(t, s.target)
	there := inspectIn(t, other.PID, s.target)
	must(t, Replace(t.Context(), here.ID, ReplaceOptions{Tree: clone(t, f.file)}))
	if isMounted(t, here.ID) || countMountsAt(t, s.target) != 1 || !showsFile(t, s.target, f.file) {
		t.Errorf("mounted %v, %d layers, fresh %v", isMounted(t, here.ID), countMountsAt(t, s.target), showsFile(t, s.target, f.file))
	}
	now := inspectIn(t, other.PID, s.target)
	if now.Same(there.ID) == spread || spread && now.Root != "/file" {
		t.Errorf("the other namespace has %v, had %v; to spread: %v", now, there, spread)
	}
}

// TestReplaceWhereNothingGoesBeneath: the parent would spread the tree onto the mount itself.
func TestReplaceWhereNothingGoesBeneath(t *testing.T) {
	forEachMethod(t, replaceWhereNothingGoesBeneath)
}

func replaceWhereNothingGoesBeneath(t *testing.T) {
	f := newReplacementFiles(t)
	for _, inUse := range []bool{false, true} {
		s := newSceneOf(t, "self", true)
		must(t, systest.UnmountPath(s.target, false))
		must(t, SetPropagation(s.dir, Shared, false))
		must(t, Bind(s.target, s.target))
		id := inspect(t, s.target).ID
		if inUse {
			openFile(t, s.target)
		}
		err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.dir)})
		if inUse {
			if !errors.Is(err, ErrBusy) || errors.Is(err, sys.EINVAL) || !isMounted(t, id) || countMountsAt(t, s.target) != 1 {
				t.Errorf("replace in use: %v, mounted %v, %d layers", err, isMounted(t, id), countMountsAt(t, s.target))
			}
			continue
		}
		must(t, err)
		if isMounted(t, id) || countMountsAt(t, s.target) != 1 || !showsFile(t, s.target, f.dir) {
			t.Errorf("mounted %v, %d layers", isMounted(t, id), countMountsAt(t, s.target))
		}
	}
}

// TestReplaceInNamespaceOfOtherUsers: a pod may have users of its own. A copy of
// its namespace would only follow it.
func TestReplaceInNamespaceOfOtherUsers(t *testing.T) {
	forEachMethod(t, replaceInNamespaceOfOtherUsers)
}

func replaceInNamespaceOfOtherUsers(t *testing.T) {
	f := newReplacementFiles(t)
	for _, inUse := range []bool{false, true} {
		dir := t.TempDir()
		pod := kerneltest.StartWith(t, sys.PrivateMounts(sys.Clone{User: true}), "pod", dir)
		target := filepath.Join(dir, "target")
		ns, err := mountns.Of(pod.PID)
		must(t, err)
		if inUse {
			fd, err := mountns.Lookup(pod.PID, target)
			must(t, err)
			defer fd.Close()
		}
		st := inspectIn(t, pod.PID, target)
		tree := clone(t, f.file)
		must(t, ns.Do(func() error { return Replace(t.Context(), st.ID, ReplaceOptions{Tree: tree}) }))
		if now := inspectIn(t, pod.PID, target); now.Root != "/file" || now.Same(st.ID) {
			t.Errorf("in use %v: there is %+v", inUse, now)
		}
	}
}

// podRole has a file bound in a namespace of its own.
func podRole(args []string, ready func(string)) error {
	source, target := filepath.Join(args[0], "source"), filepath.Join(args[0], "target")
	err := errors.Join(Tmpfs(args[0], 1<<16), os.WriteFile(source, nil, 0o600), os.WriteFile(target, nil, 0o600), Bind(source, target))
	if err != nil {
		return err
	}
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// idMappedSource is a source that finds owners of files mapped.
type idMappedSource struct{ kernelSource }

func (m idMappedSource) identify(fd *sys.FD, point string) (State, error) {
	st, err := m.kernelSource.identify(fd, point)
	st.Attr |= sys.AttrIDMap
	return st, err
}

func TestReplaceLeavesMappedOwnersAlone(t *testing.T) {
	onlyKernel(t)
	f := newReplacementFiles(t)
	s := newScene(t)
	id := inspect(t, s.target).ID
	withSource(t, idMappedSource{}, func(t *testing.T) {
		if err := Replace(t.Context(), id, ReplaceOptions{Tree: clone(t, f.file)}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("replace: %v, want not supported", err)
		}
	})
	if !isMounted(t, id) || countMountsAt(t, s.target) != 1 {
		t.Error("something was changed")
	}
}

func replaceRole(args []string, ready func(string)) error {
	point, dir := args[0], args[1]
	if err := Tmpfs(dir, 1<<16); err != nil {
		return err
	}
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return err
	}
	source, err := sys.Lookup(name)
	if err != nil {
		return err
	}
	tree, err := sys.CloneTree(source)
	if err != nil {
		return err
	}
	st, err := Inspect(point)
	if err != nil {
		return err
	}
	answer := "replaced"
	if err := Replace(roleContext, st.ID, ReplaceOptions{Tree: tree}); err != nil {
		answer = err.Error()
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	ready(answer + ", " + string('0'+rune(strings.Count(string(text), " "+point+" "))) + " layers")
	return nil
}
