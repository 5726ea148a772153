// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/holders"
)

// addUsers adds the roles of processes that use a file system.
func addUsers() {
	for name, how := range map[string]sys.Propagation{"private user": sys.Private, "following user": sys.Slave} {
		devicetest.Roles[name] = holders.InThread(func(args []string) error {
			if err := sys.SetPropagation("/", how, true); err != nil {
				return err
			}
			_, err := os.Open(args[0]) // until the process ends
			return err
		}, nil)
	}
	devicetest.Roles["user"] = func(args []string, ready func(string)) error {
		k, err := ways[args[0]](args[1])
		if err != nil {
			return err
		}
		return k.Stay(ready)
	}
}

// ways are ways to use a file system in the kubelet's own namespace.
var ways = map[string]func(dir string) (holders.Kept, error){
	"file":    holders.OpenFile,
	"cwd":     func(dir string) (holders.Kept, error) { return holders.Kept{}, os.Chdir(dir) },
	"root":    func(dir string) (holders.Kept, error) { return holders.Kept{}, systest.Chroot(dir) },
	"mapping": holders.RunLibrary,
	"loop":    holders.LoopOn,
	"overlay": holders.OverlayOn,
}

// TestBlockersAreWhyTheKernelRefuses compares the users that are said to keep a mount busy with the kernel's own answer to its
// unmount.
func TestBlockersAreWhyTheKernelRefuses(t *testing.T) {
	inNamespace := func(way string) func(t *testing.T, volume, bind string) {
		return func(t *testing.T, volume, _ string) { kerneltest.StartWith(t, nil, "user", way, volume) }
	}
	for name, tc := range map[string]struct {
		use  func(t *testing.T, volume, bind string)
		kind devholder.Kind // of the holder that blocks; empty: no holder does
	}{
		"no user":           {func(*testing.T, string, string) {}, ""},
		"file":              {inNamespace("file"), devholder.OpenFile},
		"working directory": {inNamespace("cwd"), devholder.WorkingDirectory},
		"root":              {inNamespace("root"), devholder.RootDirectory},
		"mapping":           {inNamespace("mapping"), devholder.Mapping},
		"loop device":       {inNamespace("loop"), devholder.LoopDevice},
		"loop by a bind":    {func(t *testing.T, _, bind string) { kerneltest.StartWith(t, nil, "user", "loop", bind) }, ""},
		"overlay":           {inNamespace("overlay"), ""},
		"file by a bind":    {func(t *testing.T, _, bind string) { kerneltest.StartWith(t, nil, "user", "file", bind) }, ""},
		"private copy":      {func(t *testing.T, volume, _ string) { kerneltest.StartWith(t, nil, "private user", volume) }, ""},
		"copy that follows": {func(t *testing.T, volume, _ string) { kerneltest.StartWith(t, nil, "following user", volume) }, devholder.OpenFile},
		"bind that follows": {func(t *testing.T, _, bind string) { kerneltest.StartWith(t, nil, "following user", bind) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := kubelettest.New(t)
			table, err := mountns.Table(0)
			must(t, err)
			root, _ := table.On(s.Root)
			must(t, sys.SetPropagation(root.Point, sys.Shared, false))
			volume, bind := filepath.Join(s.Root, "pods/u/volumes/x/v"), filepath.Join(s.Root, "pods/u/volumes/x/w")
			must(t, errors.Join(os.MkdirAll(volume, 0o755), os.MkdirAll(bind, 0o755)))
			must(t, sys.NewMount("v", volume, "tmpfs", ""))
			t.Cleanup(func() { systest.UnmountPath(volume, true) })
			must(t, sys.BindMount(volume, bind))
			t.Cleanup(func() { systest.UnmountPath(bind, true) })
			tc.use(t, volume, bind)
			if name == "overlay" {
				t.Cleanup(func() { systest.UnmountPath(filepath.Join(filepath.Dir(volume), "merged"), false) })
			}
			table, err = mountns.Table(0)
			must(t, err)
			m, _ := table.Top(volume)
			usage, err := (&device.Inspector{Kubelet: s.Node, Finder: &devholder.Finder{}}).Users(t.Context(), m)
			must(t, err)
			var kinds []devholder.Kind
			for _, h := range usage.Blockers() {
				kinds = append(kinds, h.Kind)
			}
			if want := slices.DeleteFunc([]devholder.Kind{tc.kind}, func(k devholder.Kind) bool { return k == "" }); !slices.Equal(kinds, want) {
				t.Errorf("blocked by %q, want %q; users %+v", kinds, want, usage.HolderInfos)
			}
			if err := systest.UnmountPath(volume, false); errors.Is(err, sys.EBUSY) != (tc.kind != "") {
				t.Errorf("the kernel answers %v", err)
			}
		})
	}
}
