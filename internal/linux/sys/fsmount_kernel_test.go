// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func TestMountDetached(t *testing.T) {
	kerneltest.Needs(t, sys.HasMountTrees)
	root, err := sys.MountDetached("tmpfs")
	must(t, err)
	defer root.Close()
	if _, err := sys.ReadBelow(root, "none", make([]byte, 8)); !errors.Is(err, sys.ENOENT) {
		t.Errorf("read of nothing: %v, want ENOENT", err)
	}
	if err := sys.WriteBelow(root, "none", "x"); !errors.Is(err, sys.ENOENT) {
		t.Errorf("write to nothing: %v, want ENOENT", err)
	}
	if _, err := sys.MountDetached("none of that name"); !errors.Is(err, sys.ENODEV) {
		t.Errorf("unknown type: %v, want ENODEV", err)
	}
}

func TestReadAndWriteBelow(t *testing.T) {
	path := t.TempDir()
	dir, err := sys.Lookup(path)
	must(t, err)
	defer dir.Close()
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("0123456789"), 0o600))
	must(t, os.Symlink("file", filepath.Join(path, "link")))
	text, err := sys.ReadBelow(dir, "file", make([]byte, 4))
	if err != nil || string(text) != "0123" {
		t.Errorf("read %q, %v", text, err)
	}
	must(t, sys.WriteBelow(dir, "file", "ab"))
	if text, err := sys.ReadBelow(dir, "file", make([]byte, 4)); err != nil || string(text) != "ab23" {
		t.Errorf("read %q, %v after a write", text, err)
	}
	if _, err := sys.ReadBelow(dir, "link", make([]byte, 4)); !errors.Is(err, sys.ELOOP) {
		t.Errorf("read of a link: %v, want ELOOP", err)
	}
}

// TestInMountsCopy: changes of mounts inside stay inside, and the thread is afterwards where it was: namespace, root
// and directory.
func TestInMountsCopy(t *testing.T) {
	if err := sys.InMountsCopy(func() error { return nil }); !errors.Is(err, sys.EINVAL) {
		t.Errorf("outside a thread of its own: %v, want EINVAL", err)
	}
	root, point := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(root, "sub", "here"), nil, 0o600))
	failure := errors.New("inside")
	must(t, sys.OnThread(func() error {
		before, err := sys.ReadlinkProc(sys.ThreadProc("ns/mnt"))
		must(t, err)
		err = sys.InMountsCopy(func() error {
			inside, err := sys.ReadlinkProc(sys.ThreadProc("ns/mnt"))
			if err != nil || inside == before {
				t.Errorf("inside %s, before %s, %v", inside, before, err)
			}
			must(t, sys.NewMount("none", point, "tmpfs", ""))
			return failure
		})
		if !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
		if after, err := sys.ReadlinkProc(sys.ThreadProc("ns/mnt")); err != nil || after != before {
			t.Errorf("after %s, before %s, %v", after, before, err)
		}
		if err := systest.UnmountPath(point, false); !errors.Is(err, sys.EINVAL) {
			t.Errorf("unmount of what was mounted inside: %v, want EINVAL", err)
		}
		must(t, systest.Chroot(root))
		must(t, os.Chdir("/sub"))
		must(t, sys.InMountsCopy(func() error { return nil }))
		for _, name := range []string{"/sub/here", "here"} {
			_, err := os.Lstat(name)
			must(t, err)
		}
		return nil
	}))
}
