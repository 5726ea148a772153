// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
)

// TestUnmountLeavesNoPlaceholder plays a kubelet that has found the stale bind in place and is just having the container
// started: with the bind gone, the runtime is not to start it with the empty file or directory below.
func TestUnmountLeavesNoPlaceholder(t *testing.T) {
	for _, c := range []struct{ plugin, volume string }{
		{kubelettest.ConfigMap, "configmap"}, {kubelettest.EmptyDir, "empty"},
	} {
		t.Run(c.volume, func(t *testing.T) {
			b := stale(t, c.plugin, c.volume)
			must(t, Unmount(t.Context(), b.Node, b.pod, b.inspect(t)[0].State.ID))
			if _, err := os.Lstat(b.point); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("at the point: %v, want nothing", err)
			}
			if err := mount.Bind(b.point, b.Root); !errors.Is(err, sys.ENOENT) {
				t.Errorf("the runtime's bind: %v, want ENOENT", err)
			}
			// The kubelet's next start makes it anew.
			b.Bind(filepath.Join(b.Volume(b.pod, c.plugin, c.volume), "entry"), b.point)
			must(t, b.Start(b.point))
		})
	}
}

// TestUnmountRemovesNothingElse has something else below the bind.
func TestUnmountRemovesNothingElse(t *testing.T) {
	t.Run("a file with content", func(t *testing.T) {
		b := stale(t, kubelettest.ConfigMap, "configmap")
		id := b.inspect(t)[0].State.ID
		must(t, sys.UnmountPath(b.point, false))
		must(t, os.WriteFile(b.point, []byte("mine"), 0o644))
		lost := filepath.Join(b.Root, "lost")
		must(t, os.WriteFile(lost, nil, 0o644))
		b.Stack(lost, b.point)
		must(t, os.Remove(lost))
		if err := Unmount(t.Context(), b.Node, b.pod, id); !errors.Is(err, mount.ErrChanged) {
			t.Fatalf("error %v, want ErrChanged: it is another mount", err)
		}
		must(t, Unmount(t.Context(), b.Node, b.pod, b.inspect(t)[0].State.ID))
		if text, err := os.ReadFile(b.point); err != nil || string(text) != "mine" {
			t.Errorf("below: %q, %v", text, err)
		}
	})
	t.Run("a healthy mount", func(t *testing.T) {
		b := bind(t, kubelettest.ConfigMap, "configmap", "entry")
		lower, err := mount.Inspect(b.point)
		must(t, err)
		lost := filepath.Join(b.Root, "lost")
		must(t, os.WriteFile(lost, nil, 0o644))
		b.Stack(lost, b.point)
		must(t, os.Remove(lost))
		must(t, Unmount(t.Context(), b.Node, b.pod, b.inspect(t)[0].State.ID))
		if st, err := mount.Inspect(b.point); err != nil || !st.Same(lower.ID) {
			t.Errorf("at the point: %+v, %v, want the mount that was below", st, err)
		}
	})
}

// stale is a bind that has become stale.
func stale(t *testing.T, plugin, volume string) bound {
	t.Helper()
	b := bind(t, plugin, volume, "entry")
	if plugin == kubelettest.EmptyDir {
		dir := filepath.Join(b.Volume(b.pod, plugin, volume), "entry")
		must(t, os.Remove(dir))
		must(t, os.Mkdir(dir, 0o755))
	} else {
		b.Update(b.pod, plugin, volume, map[string]string{"entry": "two"})
	}
	if v := b.verdict(t); v != Stale {
		t.Fatalf("verdict %s, want Stale", v)
	}
	return b
}
