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

// Lookup opens an absolute path with O_PATH, which runs no driver and sends no file system a request about the last
// component. No link is followed anywhere: a path with one gives ELOOP. The lookup of the components before the last
// waits for their file systems, as usual; LookupCached never waits.
func Lookup(path string) (*FD, error) { return LookupIn(nil, path) }

// LookupIn is Lookup as seen from root, which the path cannot leave.
func LookupIn(root *FD, path string) (*FD, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	return Walk{Root: root, NoLinks: true}.Open(path)
}

// LookupCached is Lookup, or LookupIn where root is not nil, answered from the
// kernel's cache alone. EAGAIN means that only a file system could answer;
// errors.ErrUnsupported is not used: a kernel before 5.12 gives EINVAL, one
// before 5.6 ENOSYS.
func LookupCached(root *FD, path string) (*FD, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	dir, resolve := unix.AT_FDCWD, uint64(unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS|resolveCached)
	if root != nil {
		dir, resolve = root.number, resolve|unix.RESOLVE_IN_ROOT
	}
	return openat2(dir, path, resolve)
}

// LookupBeneath opens a path relative to dir with O_PATH. Symbolic links are followed
// as long as they stay below dir and on its mount; EXDEV: the path, or a link in it,
// leads out of either, or is absolute. Links of /proc give ELOOP. It waits for the
// file system that dir lies on.
func LookupBeneath(dir *FD, path string) (*FD, error) {
	return Walk{Root: dir, Beneath: true, OneMount: true}.Open(path)
}

// OpenIn opens path with O_PATH as a process sees it whose root directory is root, such as /proc/123/root: absolute
// links and ".." stay in there, whatever other processes rename meanwhile. The file at the end gets no request. Links
// of /proc that are no paths are not followed. It waits for the file systems on the way.
func OpenIn(root, path string) (*FD, error) {
	dir, err := OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return Walk{Root: dir}.Open(path)
}

// lookupTries bounds how often a lookup is repeated that met an unmount or a rename.
const lookupTries = 32

// openat2 opens a path with O_PATH. The kernel gives up if something is renamed while it goes up a ".." (EAGAIN), and
// if a scoped lookup stands on a mount that is unmounted (EXDEV). A second lookup of the path finds its present file.
func openat2(dir int, path string, resolve uint64) (*FD, error) {
	// O_NOFOLLOW would open a link at the end of the path instead of refusing it.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolve}
	for try := 1; ; try++ {
		n, err := retryInterrupted(func() (int, error) { return unix.Openat2(dir, path, &how) })
		again := err == unix.EXDEV && resolve&unix.RESOLVE_IN_ROOT != 0 || err == unix.EAGAIN && resolve&resolveCached == 0
		if again && try < lookupTries {
			continue
		}
		if err != nil {
			return nil, err
		}
		return newFD(n), nil
	}
}

const pathFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

func openat(dir int, path string, flags int) (*FD, error) {
	n, err := retryInterrupted(func() (int, error) { return unix.Openat(dir, path, flags, 0) })
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

// checkPath verifies the condition of both kinds of lookup: the path is absolute and climbs nowhere.
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
