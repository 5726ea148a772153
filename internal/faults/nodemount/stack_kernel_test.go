// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package nodemount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMain(m *testing.M) {
	subprocess.Main(Job)
	kerneltest.Main(m, nil)
}

// scene is a kubelet's root with a volume of a pod, and a directory of the driver that is mounted there.
type scene struct {
	*testing.T
	*Inspector
	source, point string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	root := t.TempDir()
	kerneltest.Must(t, mount.Bind(root, root)) // so that all goes with it
	t.Cleanup(func() {
		for systest.UnmountPath(root, true) == nil {
		}
	})
	node, err := kubelet.Local(root)
	kerneltest.Must(t, err)
	s := &scene{t, &Inspector{Kubelet: node, Runner: &subprocess.Runner{}}, filepath.Join(node.Root, "source"),
		node.VolumePoint(kubelet.Volume{PodUID: "u", Plugin: kubelet.CSIPlugin, Name: "pvc-1"})}
	for _, dir := range []string{s.source, s.point, node.PodsDir()} {
		kerneltest.Must(t, os.MkdirAll(dir, 0o755))
	}
	kerneltest.Must(t, mount.Tmpfs(s.source, 1<<20))
	kerneltest.Must(t, os.WriteFile(filepath.Join(s.source, "data"), []byte("kept"), 0o600))
	return s
}

// stack binds the driver's directory several times.
func (s *scene) stack(times int) {
	s.Helper()
	for range times {
		kerneltest.Must(s.T, mount.Bind(s.source, s.point))
	}
}

func (s *scene) plan() []fault.Action {
	s.Helper()
	_, actions, _, err := s.Plan(s.Context(), "")
	kerneltest.Must(s.T, err)
	return actions
}

// layers is how many mounts lie at the volume.
func (s *scene) layers() int {
	s.Helper()
	node, err := s.Kubelet.Node(s.Context())
	kerneltest.Must(s.T, err)
	table, err := node.Mounts(s.Context())
	kerneltest.Must(s.T, err)
	return len(table.All(s.point))
}

// expect makes sure of the number of mounts, and that the volume's file shows.
func (s *scene) expect(what string, layers int) {
	s.Helper()
	if n := s.layers(); n != layers {
		s.Errorf("%s: %d mounts at the volume, want %d", what, n, layers)
	}
	if text, err := os.ReadFile(filepath.Join(s.point, "data")); string(text) != "kept" {
		s.Errorf("%s: the volume has %q, %v", what, text, err)
	}
}

// TestUnstacks removes all mounts of a stack but one, the topmost first, and is killed and begun again after each.
func TestUnstacks(t *testing.T) {
	s := newScene(t)
	s.stack(2)
	if actions := s.plan(); len(actions) != 0 {
		t.Errorf("two mounts: %+v", actions)
	}
	s.stack(3)
	found, actions, refusals, err := s.Plan(t.Context(), s.point)
	kerneltest.Must(t, err)
	if len(found) != 1 || found[0].Code != fault.StackedMounts || found[0].Details.Layers != 5 || len(actions) != 4 || len(refusals) != 0 {
		t.Fatalf("%+v, %d actions, refusals %q", found, len(actions), refusals)
	}
	for done := range actions {
		for i, a := range actions[:done+1] {
			err := s.Unmount(t.Context(), *a.Mount)
			if i < done && !errors.Is(err, mount.ErrNotMounted) || i == done && err != nil {
				t.Errorf("unmount %d after %d: %v", i, done, err)
			}
		}
		s.expect("one was removed", 4-done)
	}
	if actions := s.plan(); len(actions) != 0 {
		t.Errorf("afterwards: %+v", actions)
	}
	layers, there, err := s.Left(t.Context(), actions)
	kerneltest.Must(t, err)
	if layers[s.point] != 1 || len(there) != 0 {
		t.Errorf("left: %v, %v", layers, there)
	}
}

// TestLeavesMountsThatAreUsed has files open through the topmost mount, and a working directory: nothing is touched.
func TestLeavesMountsThatAreUsed(t *testing.T) {
	s := newScene(t)
	s.stack(4)
	actions := s.plan()
	file, err := os.Open(filepath.Join(s.point, "data"))
	kerneltest.Must(t, err)
	if err := s.Unmount(t.Context(), *actions[0].Mount); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("an open file: %v", err)
	}
	s.expect("an open file", 4)
	kerneltest.Must(t, file.Close())
	if err := s.Unmount(t.Context(), *actions[1].Mount); !errors.Is(err, mount.ErrChanged) {
		t.Errorf("not the topmost: %v", err)
	}
	s.expect("not the topmost", 4)
	kerneltest.Must(t, s.Unmount(t.Context(), *actions[0].Mount))
	s.expect("the file is closed", 3)
}

// TestLeavesWhatDiffers has mounts that became other ones since the plan, and those that a plan never has.
func TestLeavesWhatDiffers(t *testing.T) {
	s := newScene(t)
	s.stack(3)
	actions := s.plan()
	kerneltest.Must(t, mount.Tmpfs(s.point, 1<<20))
	kerneltest.Must(t, os.WriteFile(filepath.Join(s.point, "data"), []byte("kept"), 0o600))
	if err := s.Unmount(t.Context(), *actions[0].Mount); !errors.Is(err, mount.ErrChanged) {
		t.Errorf("below another one: %v", err)
	}
	s.expect("below another one", 4)

	other := newScene(t)
	for range 4 {
		kerneltest.Must(t, mount.Tmpfs(other.point, 1<<20))
	}
	kerneltest.Must(t, os.WriteFile(filepath.Join(other.point, "data"), []byte("kept"), 0o600))
	found, actions, refusals, err := other.Plan(t.Context(), "")
	kerneltest.Must(t, err)
	if len(found)+len(actions) != 0 || len(refusals) != 1 {
		t.Errorf("file systems of their own: %+v, %+v, %q", found, actions, refusals)
	}
	e, err := other.Look(t.Context())
	kerneltest.Must(t, err)
	if len(e.Stacks) != 1 {
		t.Fatalf("%+v", e)
	}
	if err := other.Unmount(t.Context(), e.Stacks[0].Top); !errors.Is(err, ErrNotRemovable) {
		t.Errorf("a file system of its own: %v", err)
	}
	other.expect("file systems of their own", 4)

	last := newScene(t)
	last.stack(3)
	actions = last.plan()
	kerneltest.Must(t, last.Unmount(t.Context(), *actions[0].Mount))
	kerneltest.Must(t, last.Unmount(t.Context(), *actions[1].Mount))
	node, err := last.Kubelet.Node(t.Context())
	kerneltest.Must(t, err)
	ns, err := node.Namespace()
	kerneltest.Must(t, err)
	st, err := mount.Inspect(last.point)
	kerneltest.Must(t, err)
	only := *actions[0].Mount
	only.ID, only.MountInfoID, only.ParentID, only.Namespace = st.UniqueID, st.MountInfoID, st.Parent, ns.Inode
	if err := last.Unmount(t.Context(), only); !errors.Is(err, ErrNotRemovable) {
		t.Errorf("the last one: %v", err)
	}
	last.expect("the last one", 1)
	only.Namespace++
	if err := last.Unmount(t.Context(), only); !errors.Is(err, ErrNotRemovable) {
		t.Errorf("another namespace: %v", err)
	}
}

// TestLeavesDoubledMounts binds the kubelet's directory to itself in a shared tree, where the kernel doubles the mounts each time. One unmount
// would take all of them away, the last one, too.
func TestLeavesDoubledMounts(t *testing.T) {
	s := newScene(t)
	s.share()
	s.point = filepath.Join(filepath.Dir(s.source), "pods")
	kerneltest.Must(t, os.WriteFile(filepath.Join(s.point, "data"), []byte("kept"), 0o600))
	for range 4 {
		kerneltest.Must(t, mount.Bind(s.point, s.point))
	}
	before := s.layers()
	if before < 8 {
		t.Fatalf("%d mounts at the place, want them to be doubled", before)
	}
	found, actions, refusals, err := s.Plan(t.Context(), "")
	kerneltest.Must(t, err)
	if len(found)+len(actions) != 0 || len(refusals) != 1 {
		t.Errorf("%+v, %+v, %q", found, actions, refusals)
	}
	e, err := s.Look(t.Context())
	kerneltest.Must(t, err)
	if err := s.Unmount(t.Context(), e.Stacks[0].Top); !errors.Is(err, ErrNotRemovable) {
		t.Errorf("the topmost one: %v", err)
	}
	s.expect("doubled", before)
}

// share makes the kubelet's root a shared mount.
func (s *scene) share() {
	s.Helper()
	kerneltest.Must(s.T, sys.SetPropagation(filepath.Dir(s.source), sys.Shared, false))
}

// TestUnstacksSharedMounts has mounts that are shared, each in a peer group of its own, as those of a private source are.
func TestUnstacksSharedMounts(t *testing.T) {
	s := newScene(t)
	s.share()
	s.stack(5)
	actions := s.plan()
	if len(actions) != 4 {
		t.Fatalf("%+v", actions)
	}
	for i, a := range actions {
		kerneltest.Must(t, s.Unmount(t.Context(), *a.Mount))
		s.expect("shared", 4-i)
	}
}
