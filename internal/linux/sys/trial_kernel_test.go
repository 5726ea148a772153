// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// NewScratchSpace is for the roles.
var NewScratchSpace = newScratchSpace

// Close gives the place back.
func (s *Scratch) Close() error { return s.mountNamespace.Close() }

// scratches is both kinds of place to try in, whichever this kernel needs.
func scratches(t *testing.T) map[string]*Scratch {
	t.Helper()
	space, err := newScratchSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	all := map[string]*Scratch{"namespace": space}
	if hasDetachedTarget.Probe() == nil {
		all["detached"] = &Scratch{}
	}
	return all
}

// tryAttachCopy attaches a copy of the file at path, after then has changed it.
func tryAttachCopy(t *testing.T, s *Scratch, path string, dir bool, then func() error) (result error) {
	t.Helper()
	err := WithOwnFDTable(func() error {
		fd, err := Lookup(path)
		if err != nil {
			return err
		}
		defer fd.Close()
		before, err := ReadlinkProc(ThreadProc("ns/mnt"))
		if err != nil {
			return err
		}
		if err := then(); err != nil {
			return err
		}
		tree, err := CloneTree(fd)
		if err != nil {
			return err
		}
		defer tree.Close()
		result = s.TryAttach(tree, dir)
		if after, err := ReadlinkProc(ThreadProc("ns/mnt")); after != before {
			t.Errorf("thread is in %s, was in %s: %v", after, before, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestTryAttach(t *testing.T) {
	nothing := func() error { return nil }
	for name, s := range scratches(t) {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, file := filepath.Join(base, "dir"), filepath.Join(base, "file")
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "sub"), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			before := ownMounts(t)
			for range 3 {
				if err := errors.Join(tryAttachCopy(t, s, dir, true, nothing), tryAttachCopy(t, s, file, false, nothing)); err != nil {
					t.Error(err)
				}
			}
			sub := filepath.Join(dir, "sub")
			if err := tryAttachCopy(t, s, sub, true, func() error { return os.Remove(sub) }); err != ENOENT {
				t.Errorf("directory that was removed: %v", err)
			}
			if err := tryAttachCopy(t, s, file, false, func() error { return os.Remove(file) }); err != ENOENT {
				t.Errorf("file that was removed: %v", err)
			}
			if after := ownMounts(t); after != before {
				t.Errorf("the table was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// TestScratchSpaceIsEmpty checks that the namespace holds nothing that could
// keep a device busy, and that emptying it takes nothing from ours.
func TestScratchSpaceIsEmpty(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	err := errors.Join(NewMount("none", dir, "tmpfs", ""), SetPropagation(dir, Shared, false),
		os.Mkdir(inner, 0o700), NewMount("none", inner, "tmpfs", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(systest.UnmountPath(inner, true), systest.UnmountPath(dir, true)) })
	before := ownMounts(t)
	s, err := newScratchSpace()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if after := ownMounts(t); after != before {
		t.Errorf("the table was\n%s\nand is\n%s", before, after)
	}
	info, err := s.mountNamespace.NamespaceInfo()
	if errors.Is(err, ENOTTY) {
		t.Skip("kernel lacks NS_MNT_GET_INFO")
	}
	// The new tmpfs, and the empty one that every namespace has beneath.
	if err != nil || info.Mounts > 2 {
		t.Errorf("%d mounts, %v", info.Mounts, err)
	}
}

func ownMounts(t *testing.T) string {
	t.Helper()
	text, err := ReadProc("self/mountinfo", nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
