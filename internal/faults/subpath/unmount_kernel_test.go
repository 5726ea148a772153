// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// applyUnmount has a mount unmounted as the bind of a pod.
func applyUnmount(t *testing.T, node *kubelet.Node, pod *corev1.Pod, st mount.State) (fault.Applied, error) {
	t.Helper()
	ns, err := mountns.Self()
	must(t, err)
	planned := faults.MountOfState(st, ns.Inode)
	return Apply(t.Context(), node, pod, fault.Action{Kind: fault.Unmount, Mount: &planned}, nil)
}

func (b boundPod) unmount(t *testing.T, st mount.State) {
	t.Helper()
	if done, err := applyUnmount(t, b.Node, b.pod, st); err != nil || done.Already {
		t.Fatalf("unmount: %+v, %v", done, err)
	}
}

// TestUnmountLeavesNoPlaceholder plays a kubelet that has found the stale bind in place and is just having the
// container started: with the bind gone, the runtime is not to start it with the empty file or directory below.
func TestUnmountLeavesNoPlaceholder(t *testing.T) {
	for _, c := range []struct{ plugin, volume string }{
		{kubelettest.ConfigMap, "configmap"}, {kubelettest.EmptyDir, "empty"},
	} {
		t.Run(c.volume, func(t *testing.T) {
			b := newStalePod(t, c.plugin, c.volume)
			b.unmount(t, b.inspectPod(t)[0].State)
			source, err := os.Stat(filepath.Join(b.Volume(b.pod, c.plugin, c.volume), "entry"))
			must(t, err)
			if now, err := os.Stat(b.point); err != nil || !os.SameFile(now, source) {
				t.Fatalf("at the point: %v, %v, want what the subPath names", now, err)
			}
			must(t, b.Start(b.point))
			if binds := b.inspectPod(t); len(binds) != 1 || binds[0].Verdict != Alive || binds[0].HiddenMounts != 0 {
				t.Errorf("binds = %+v, want one that is alive, with nothing beneath", binds)
			}
		})
	}
}

// TestUnmountPutsNothingElse has what the subPath names be nothing that can take the place of the bind.
func TestUnmountPutsNothingElse(t *testing.T) {
	lost := func(t *testing.T) boundPod {
		b := newBoundPod(t, kubelettest.EmptyDir, "empty", "entry")
		must(t, os.Remove(filepath.Join(b.Volume(b.pod, kubelettest.EmptyDir, "empty"), "entry")))
		return b
	}
	for name, put := range map[string]func(t *testing.T, entry string){
		"nothing": func(*testing.T, string) {},
		"a file":  func(t *testing.T, entry string) { must(t, os.WriteFile(entry, nil, 0o644)) },
		"a link out of the volume": func(t *testing.T, entry string) {
			must(t, os.Symlink("/etc", entry))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := lost(t)
			put(t, filepath.Join(b.Volume(b.pod, kubelettest.EmptyDir, "empty"), "entry"))
			b.unmount(t, b.inspectPod(t)[0].State)
			if st, err := mount.Inspect(b.point); !errors.Is(err, mount.ErrNotMounted) {
				t.Errorf("at the point: %+v, %v, want ErrNotMounted", st, err)
			}
		})
	}
	t.Run("a healthy mount beneath", func(t *testing.T) {
		b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "entry")
		lower, err := mount.Inspect(b.point)
		must(t, err)
		lost := filepath.Join(b.Root, "lost")
		must(t, os.WriteFile(lost, nil, 0o644))
		b.Stack(lost, b.point)
		must(t, os.Remove(lost))
		b.unmount(t, b.inspectPod(t)[0].State)
		if st, err := mount.Inspect(b.point); err != nil || !st.Same(lower.ID) {
			t.Errorf("at the point: %+v, %v, want the mount that was below", st, err)
		}
	})
}

// TestUnmountOnSharedMount has the kubelet's root on a shared mount, as systemd makes it.
func TestUnmountOnSharedMount(t *testing.T) {
	b := newBoundPod(t, kubelettest.ConfigMap, "configmap", "entry")
	must(t, systest.UnmountPath(b.point, false))
	must(t, mount.SetPropagation(filepath.Dir(b.Root), mount.Shared, false))
	b.Bind(filepath.Join(b.Volume(b.pod, kubelettest.ConfigMap, "configmap"), "entry"), b.point)
	b.Update(b.pod, kubelettest.ConfigMap, "configmap", map[string]string{"entry": "two"})
	before := b.inspectPod(t)[0]
	if before.State.Shared == 0 || before.PeerGroup != before.State.Shared {
		t.Fatalf("peer groups %d and %d, want one for both", before.State.Shared, before.PeerGroup)
	}
	b.unmount(t, before.State)
	if binds := b.inspectPod(t); len(binds) != 1 || binds[0].Verdict != Alive || binds[0].HiddenMounts != 0 {
		t.Errorf("binds = %+v, want one that is alive, with nothing beneath", binds)
	}
}

// newStalePod is a bind that has become stale.
func newStalePod(t *testing.T, plugin, volume string) boundPod {
	t.Helper()
	b := newBoundPod(t, plugin, volume, "entry")
	if plugin == kubelettest.EmptyDir {
		dir := filepath.Join(b.Volume(b.pod, plugin, volume), "entry")
		must(t, os.Remove(dir))
		must(t, os.Mkdir(dir, 0o755))
	} else {
		b.Update(b.pod, plugin, volume, map[string]string{"entry": "two"})
	}
	if v := b.verdictOf(t); v != Stale {
		t.Fatalf("verdict %s, want Stale", v)
	}
	return b
}
