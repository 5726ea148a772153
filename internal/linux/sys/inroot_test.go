// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// eachOpenIn runs test with OpenIn and with what stands in for it on old kernels.
func eachOpenIn(t *testing.T, test func(t *testing.T, open func(root, path string) (*FD, error))) {
	t.Parallel()
	t.Run("at once", func(t *testing.T) {
		if err := HasOpenat2.Probe(); err != nil {
			t.Skipf("kernel lacks openat2 (5.6): %v", err)
		}
		test(t, OpenIn)
	})
	t.Run("step by step", func(t *testing.T) {
		test(t, func(root, path string) (*FD, error) {
			dir, err := Lookup(root)
			if err != nil {
				return nil, err
			}
			defer dir.Close()
			return openIn(dir, path)
		})
	})
}

// rooted is a directory with a root and, beside it, what must not be reached.
func rooted(t *testing.T) (root string) {
	t.Helper()
	top := t.TempDir()
	root = filepath.Join(top, "root")
	for _, dir := range []string{root + "/a/b", root + "/c", top + "/out"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{root + "/a/b/f": "f", root + "/c/f": "in", top + "/out/f": "out"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"up": "../../../../../../c/f", "a/abs": "/c/f", "loop": "loop", "out": top + "/out/f", "climb": "../out/f", "a/dir": "b", "none": "/gone",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func textIn(open func(root, path string) (*FD, error), root, path string) (string, error) {
	fd, err := open(root, path)
	if err != nil {
		return "", err
	}
	defer fd.Close()
	text, err := ReadHead(fd, 100)
	return string(text), err
}

func TestOpenInStaysInside(t *testing.T) {
	eachOpenIn(t, func(t *testing.T, open func(root, path string) (*FD, error)) {
		root := rooted(t)
		deep := strings.Repeat("a/../", 600)
		for _, c := range []struct {
			path, text string
			err        error
		}{
			{"/a/b/f", "f", nil}, {"a/b/f", "f", nil}, {"//a/./b//f", "f", nil}, {"/a/dir/f", "f", nil}, {"/up", "in", nil},
			{"/a/abs", "in", nil}, {"/a/../c/f", "in", nil}, {"/../../c/f", "in", nil}, {"/a/b/../../c/f", "in", nil}, {deep + "c/f", "in", nil},
			{"/out", "", ENOENT}, {"/climb", "", ENOENT}, {"/none", "", ENOENT}, {"/gone", "", ENOENT}, {"/loop", "", ELOOP},
			{"/a/b/f/g", "", ENOTDIR}, {"/", "", EINVAL}, {"/a", "", EINVAL},
		} {
			if text, err := textIn(open, root, c.path); text != c.text || !errors.Is(err, c.err) {
				t.Errorf("%.40q: %q, %v, want %q, %v", c.path, text, err, c.text, c.err)
			}
		}
	})
}

// TestOpenInBesideASwap: what becomes a link to an absolute path while it is looked up leads nowhere else.
func TestOpenInBesideASwap(t *testing.T) {
	eachOpenIn(t, func(t *testing.T, open func(root, path string) (*FD, error)) {
		root := rooted(t)
		swapped := filepath.Join(root, "swapped")
		if err := os.Symlink(filepath.Dir(root)+"/out", root+"/link"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(root+"/c", swapped); err != nil {
			t.Fatal(err)
		}
		var stop atomic.Bool
		ended := make(chan error)
		go func() {
			for !stop.Load() {
				if err := unix.Renameat2(unix.AT_FDCWD, swapped, unix.AT_FDCWD, root+"/link", unix.RENAME_EXCHANGE); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		seen := map[string]int{}
		for try := 0; try < 100_000 && (try < 3000 || seen["in"] == 0 || seen["none"] == 0); try++ {
			text, err := textIn(open, root, "/a/../swapped/f")
			if errors.Is(err, ENOENT) || errors.Is(err, ENOTDIR) || errors.Is(err, EAGAIN) {
				text = "none"
			} else if err != nil {
				text = err.Error()
			}
			seen[text]++
		}
		stop.Store(true)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if len(seen) != 2 || seen["in"] == 0 || seen["none"] == 0 {
			t.Errorf("read %v, want what is inside and nothing", seen)
		}
	})
}

func TestOpenInKeepsNoDescriptor(t *testing.T) {
	root := rooted(t)
	descriptors := func() int {
		numbers, err := ProcNumbers("self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(numbers)
	}
	dir := openDir(t, root)
	before := descriptors()
	for _, path := range []string{"/a/b/f", "/a/b/../..", "/a/b/gone", "/loop", "/a/abs", "/a/b/f/g", strings.Repeat("a/b/../../", 300), ""} {
		for _, open := range []func() (*FD, error){
			func() (*FD, error) { return OpenIn(root, path) }, func() (*FD, error) { return openIn(dir, path) },
		} {
			fd, _ := open()
			fd.Close()
		}
	}
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func TestOpenInFollowsNoLinksOfProc(t *testing.T) {
	t.Parallel()
	if err := HasOpenat2.Probe(); err != nil {
		t.Skipf("kernel lacks openat2 (5.6): %v", err)
	}
	name := filepath.Join("/proc", strconv.Itoa(os.Getpid()), "root", "etc")
	if fd, err := OpenIn("/", name); !errors.Is(err, ELOOP) {
		fd.Close()
		t.Errorf("%s: %v, want ELOOP", name, err)
	}
}

func TestIsFunction(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"/proc/version": true, "/sys/kernel/notes": true, t.TempDir(): false} {
		if got, err := openDir(t, name).IsFunction(); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}
