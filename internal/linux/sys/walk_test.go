// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// eachOpenIn runs test with OpenIn and with its substitute on old kernels.
func eachOpenIn(t *testing.T, test func(t *testing.T, open func(root, path string) (*FD, error))) {
	t.Parallel()
	t.Run("at once", func(t *testing.T) {
		if err := hasOpenat2.Probe(); err != nil {
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
			fd, _, err := Walk{Root: dir}.Resolve(path)
			return fd, err
		})
	})
}

// newRootDir is a directory with a root and, beside it, a file that must not be reached.
func newRootDir(t *testing.T) (root string) {
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

func readTextIn(open func(root, path string) (*FD, error), root, path string) (string, error) {
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
		root := newRootDir(t)
		deep := strings.Repeat("a/../", 600)
		for _, c := range []struct {
			path, text string
			err        error
		}{
			{"/a/b/f", "f", nil}, {"a/b/f", "f", nil}, {"//a/./b//f", "f", nil}, {"/a/dir/f", "f", nil}, {"/up", "in", nil},
			{"/a/abs", "in", nil}, {"/a/../c/f", "in", nil}, {"/../../c/f", "in", nil}, {"/a/b/../../c/f", "in", nil}, {deep + "c/f", "in", nil},
			{"/out", "", ENOENT}, {"/climb", "", ENOENT}, {"/none", "", ENOENT}, {"/gone", "", ENOENT}, {"/loop", "", ELOOP},
			{"/a/b/f/g", "", ENOTDIR}, {"/", "", EINVAL}, {"/a", "", EINVAL}, {"/a/b/f/", "", ENOTDIR}, {"/a/b/f/.", "", ENOTDIR},
			{"/a/b/f/../f", "", ENOTDIR}, {"/a/abs/", "", ENOTDIR}, {"/a/dir/", "", EINVAL}, {"/" + longName(), "", unix.ENAMETOOLONG},
			{"/" + strings.Repeat("a/../", 1000) + "c/f", "", unix.ENAMETOOLONG}, {"", "", ENOENT}, {"/a\x00", "", EINVAL},
		} {
			if text, err := readTextIn(open, root, c.path); text != c.text || !errors.Is(err, c.err) {
				t.Errorf("%.40q: %q, %v, want %q, %v", c.path, text, err, c.text, c.err)
			}
		}
	})
}

// TestOpenInBesideASwap: a path that becomes a link to an absolute path during the lookup leads nowhere else.
func TestOpenInBesideASwap(t *testing.T) {
	eachOpenIn(t, func(t *testing.T, open func(root, path string) (*FD, error)) {
		root := newRootDir(t)
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
			text, err := readTextIn(open, root, "/a/../swapped/f")
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
	root := newRootDir(t)
	descriptors := func() int {
		numbers, err := ProcNumbers("self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(numbers)
	}
	dir := openDir(t, root)
	before := descriptors()
	for _, path := range []string{
		"/a/b/f", "/a/b/../..", "/a/b/gone", "/loop", "/a/abs", "/a/b/f/g", "/a/b/f/", strings.Repeat("a/b/../../", 300), "",
	} {
		for _, open := range []func() (*FD, error){
			func() (*FD, error) { return OpenIn(root, path) }, func() (*FD, error) { fd, _, err := Walk{Root: dir}.Resolve(path); return fd, err },
		} {
			fd, _ := open()
			fd.Close()
		}
	}
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

// TestNoMagicLinks: of the links of /proc those are followed that are paths.
func TestNoMagicLinks(t *testing.T) {
	own := "/proc/" + strconv.Itoa(os.Getpid())
	eachOpenIn(t, func(t *testing.T, open func(root, path string) (*FD, error)) {
		for path, want := range map[string]error{
			filepath.Join(own, "root", "etc"): ELOOP, own + "/root": ELOOP, own + "/cwd": ELOOP, own + "/exe": ELOOP, own + "/fd/0": ELOOP,
			own + "/ns/mnt": ELOOP, own + "/task/../root": ELOOP, "/proc/self/root": ELOOP,
			own + "/status": nil, "/proc/self/status": nil, "/proc/mounts": nil, "/proc/thread-self/stat": nil,
		} {
			fd, err := open("/", path)
			if fd.Close(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", path, err, want)
			}
		}
	})
}

// TestWalkFromNowhere: without a root directory, a path has to be absolute.
func TestWalkFromNowhere(t *testing.T) {
	t.Parallel()
	file := filepath.Join(newRootDir(t), "a/dir/f")
	for path, want := range map[string]error{file: nil, file + "/": ENOTDIR, "etc": EINVAL, "": nil, "../etc": EINVAL} {
		at, err := Walk{}.Open(path)
		at.Close()
		resolved, name, errResolve := Walk{}.Resolve(path)
		resolved.Close()
		if path == "" { // ENOENT or EINVAL: nothing is opened
			if err == nil || errResolve == nil {
				t.Errorf("no path: %v, %v, want errors", err, errResolve)
			}
			continue
		}
		if !errors.Is(err, want) || !errors.Is(errResolve, want) || path == file && name != filepath.Join(filepath.Dir(file), "../b/f") {
			t.Errorf("%q: %v, %q, %v, want %v", path, err, name, errResolve, want)
		}
	}
}

// TestWalkSaysWhereItLed: the name has no link in it, also where the way ends early.
func TestWalkSaysWhereItLed(t *testing.T) {
	t.Parallel()
	dir := openDir(t, newRootDir(t))
	for path, want := range map[string]struct {
		name string
		err  error
	}{
		"/a/b/f": {"/a/b/f", nil}, "a/dir/f": {"/a/b/f", nil}, "/up": {"/c/f", nil}, "/a/abs": {"/c/f", nil}, "/": {"/", nil},
		"/a/../../c/.": {"/c", nil}, "/a/dir/gone/x": {"/a/b/gone/x", ENOENT}, "/none/x": {"/gone/x", ENOENT}, "/a/abs/x": {"/c/f/x", ENOTDIR},
	} {
		fd, name, err := Walk{Root: dir}.Resolve(path)
		fd.Close()
		if name != want.name || !errors.Is(err, want.err) {
			t.Errorf("%q: %q, %v, want %q, %v", path, name, err, want.name, want.err)
		}
	}
}

func TestWalkChecksOnTheWay(t *testing.T) {
	t.Parallel()
	root := newRootDir(t)
	dir := openDir(t, root)
	var seen []string
	check := func(name string, at *FD) error {
		if there, err := Lookup(root + name); err != nil || !sameFile(t, there, at) {
			if !errors.Is(err, ELOOP) {
				t.Errorf("checked %q, and another file: %v", name, err)
			}
		}
		if seen = append(seen, name); name == "/c" {
			return EACCES
		}
		return nil
	}
	if fd, name, err := (Walk{Root: dir, Check: check}).Resolve("/a/dir/../abs"); !errors.Is(err, EACCES) || name != "/c/f" {
		fd.Close()
		t.Errorf("%q, %v, want that the check ends it", name, err)
	}
	if want := []string{"/", "/a", "/a/dir", "/a/b", "/a/abs", "/c"}; !slices.Equal(seen, want) {
		t.Errorf("checked %q, want %q", seen, want)
	}
	for _, walk := range []Walk{{Root: dir, Check: check}, {Root: openDir(t, root+"/c"), Check: func(string, *FD) error { return EACCES }}} {
		if fd, err := walk.Open("/c/f"); !errors.Is(err, EACCES) {
			fd.Close()
			t.Errorf("opened without the check: %v", err)
		}
	}
}

// sameFile closes a.
func sameFile(t *testing.T, a, b *FD) bool {
	t.Helper()
	defer a.Close()
	one, err := a.Stat(StatIno)
	other, errOther := b.Stat(StatIno)
	if err := errors.Join(err, errOther); err != nil {
		t.Fatal(err)
	}
	return one.Ino == other.Ino && one.Major == other.Major && one.Minor == other.Minor
}

// TestWalkReadsTargets has the absolute targets of links mean something of the root.
func TestWalkReadsTargets(t *testing.T) {
	t.Parallel()
	root := newRootDir(t)
	inside := func(target string) (string, error) {
		if rest, ok := strings.CutPrefix(target, filepath.Dir(root)+"/out"); ok {
			return "/c" + rest, nil
		}
		return target, nil
	}
	for path, want := range map[string]error{"out": nil, "climb": EXDEV, "a/dir/f": nil, "a/../../c": EXDEV, "/out": EXDEV} {
		w := Walk{Root: openDir(t, root), Beneath: true, Target: inside}
		fd, name, err := w.Resolve(path)
		fd.Close()
		if !errors.Is(err, want) || path == "out" && name != "/c/f" {
			t.Errorf("%q: %q, %v, want %v", path, name, err, want)
		}
		at, err := w.Open(path)
		if at.Close(); !errors.Is(err, want) {
			t.Errorf("%q opened: %v, want %v", path, err, want)
		}
	}
}

// TestWalkHasAnEnd: the work for one path is bounded, and so are the descriptors.
func TestWalkHasAnEnd(t *testing.T) {
	t.Parallel()
	root := newRootDir(t)
	dir := openDir(t, root)
	before := strings.Repeat("a/../", 700)
	for i, next := 0, "c/f"; i < 5; i++ {
		name := "long" + strconv.Itoa(i)
		if err := os.Symlink(before+next, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
		next = name
	}
	if fd, _, err := (Walk{Root: dir}).Resolve("long4"); !errors.Is(err, ELOOP) {
		fd.Close()
		t.Errorf("7,000 components: %v, want ELOOP", err)
	}
	deep := strings.Repeat("d/", 300)
	if err := os.MkdirAll(filepath.Join(root, deep), 0o755); err != nil {
		t.Fatal(err)
	}
	if fd, _, err := (Walk{Root: dir}).Resolve(deep); !errors.Is(err, unix.ENAMETOOLONG) {
		fd.Close()
		t.Errorf("300 directories: %v, want ENAMETOOLONG", err)
	}
}
