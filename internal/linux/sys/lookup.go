// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// resolveCached is RESOLVE_CACHED (5.12): answer from the dentry cache or say
// EAGAIN; never ask a file system. x/sys does not name it.
const resolveCached = 0x20

// strict refuses links of every kind, so that a path means what it says.
const strict = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Lookup opens an absolute path with O_PATH, which runs no driver and asks no
// file system about the last component. No link is followed anywhere: a path
// with one gives ELOOP. The components before the last are looked up as usual
// and wait for the file systems they lie on; LookupCached never waits.
func Lookup(path string) (*FD, error) {
	return lookup(unix.AT_FDCWD, path, strict)
}

// LookupIn is Lookup as seen from root, which the path cannot leave.
func LookupIn(root *FD, path string) (*FD, error) {
	return lookup(root.n, path, strict|unix.RESOLVE_IN_ROOT)
}

// LookupCached is Lookup, or LookupIn where root is not nil, answered from the
// kernel's cache alone. EAGAIN means that only a file system could answer;
// errors.ErrUnsupported is not used: a kernel before 5.12 gives EINVAL, one
// before 5.6 ENOSYS.
func LookupCached(root *FD, path string) (*FD, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	dir, resolve := unix.AT_FDCWD, uint64(strict|resolveCached)
	if root != nil {
		dir, resolve = root.n, resolve|unix.RESOLVE_IN_ROOT
	}
	return openat2(dir, path, resolve)
}

// LookupBeneath opens a path relative to dir with O_PATH (5.6, ENOSYS before).
// Symbolic links are followed as long as they stay below dir and on its mount;
// EXDEV: the path, or a link in it, leads out of either, or is absolute. Links
// of /proc give ELOOP. It waits for the file system that dir lies on.
func LookupBeneath(dir *FD, path string) (*FD, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	}
	var (
		n   int
		err = error(unix.EAGAIN)
	)
	// Where something is renamed while the kernel goes up a "..", it cannot tell
	// whether it still is below dir, and says so.
	for try := 0; err == unix.EAGAIN && try < lookupTries; try++ {
		n, err = retry(func() (int, error) { return unix.Openat2(dir.n, path, &how) })
	}
	if err == unix.EPERM {
		err = unix.ENOSYS // of seccomp filters, see lookup
	}
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

func lookup(dir int, path string, resolve uint64) (*FD, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := openat2(dir, path, resolve)
	// Seccomp filters written before openat2 answer EPERM for it; an O_PATH
	// open itself never does, so the walk below is right for both.
	if err == unix.ENOSYS || err == unix.EPERM {
		return walk(dir, path)
	}
	return fd, err
}

// lookupTries bounds how often a lookup is repeated that met an unmount.
const lookupTries = 32

func openat2(dir int, path string, resolve uint64) (*FD, error) {
	// O_NOFOLLOW would open a link at the end of the path instead of refusing it.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	var (
		n   int
		err = error(unix.EXDEV)
	)
	// A mount that is unmounted while a scoped lookup stands on it is no longer
	// below the root, which the kernel reports as EXDEV. Looked up again, the
	// path shows what is there now.
	for try := 0; err == unix.EXDEV && try < lookupTries; try++ {
		n, err = retry(func() (int, error) { return unix.Openat2(dir, path, &how) })
	}
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

const pathFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// walk opens path one component at a time and refuses each that is a link: the
// same promise as openat2 makes, on kernels before 5.6.
func walk(dir int, path string) (*FD, error) {
	start := "."
	if dir == unix.AT_FDCWD {
		start = "/"
	}
	at, err := openat(dir, start, pathFlags|unix.O_DIRECTORY)
	for name := range strings.SplitSeq(path, "/") {
		if err != nil {
			return nil, err
		}
		if name == "" {
			continue
		}
		at, err = step(at, name)
	}
	return at, err
}

// step opens name below at and closes at.
func step(at *FD, name string) (*FD, error) {
	next, err := openat(at.n, name, pathFlags)
	at.Close()
	if err != nil {
		return nil, err
	}
	st, err := next.Stat(unix.STATX_TYPE)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err != nil {
		next.Close()
		return nil, err
	}
	return next, nil
}

func openat(dir int, path string, flags int) (*FD, error) {
	n, err := retry(func() (int, error) { return unix.Openat(dir, path, flags, 0) })
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

// checkPath holds what both ways of looking up rely on: the path is absolute
// and climbs nowhere.
func checkPath(path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("path %q not absolute: %w", path, unix.EINVAL)
	}
	if strings.ContainsRune(path, 0) {
		return fmt.Errorf("path %q has a zero byte: %w", path, unix.EINVAL)
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == ".." {
			return fmt.Errorf("path %q climbs upwards: %w", path, unix.EINVAL)
		}
	}
	return nil
}
