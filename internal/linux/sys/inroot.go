// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenIn opens path with O_PATH as a process sees it whose root directory is
// root, such as /proc/123/root: absolute links and ".." stay in there, whatever
// is swapped meanwhile. Nothing is asked of what lies at the end. Links of /proc
// that are no paths are not followed. It waits for the file systems on the way
// (openat2(2), 5.6; before, the same is found out step by step).
func OpenIn(root, path string) (*FD, error) {
	dir, err := openat(unix.AT_FDCWD, root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	// What is renamed or unmounted on the way makes the kernel give up, see
	// openat2 and LookupBeneath.
	n, err := 0, error(unix.EAGAIN)
	for try := 0; (err == unix.EAGAIN || err == unix.EXDEV) && try < lookupTries; try++ {
		n, err = retry(func() (int, error) { return unix.Openat2(dir.n, path, &how) })
	}
	if err == unix.EAGAIN || err == unix.ENOSYS || err == unix.EPERM { // EPERM: of seccomp filters, see lookup
		return openIn(dir, path)
	}
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}

const (
	maxFollowed = 40  // symbolic links in one path, as in the kernel
	maxDepth    = 256 // directories, of each of which a descriptor is kept
)

// openIn is OpenIn without openat2. It goes on from descriptors alone, up as
// well as down, so that nothing which is moved meanwhile leads out of root.
func openIn(root *FD, path string) (*FD, error) {
	top, err := openat(root.n, ".", pathFlags|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	way := []*FD{top}
	back := func(to int) {
		for _, fd := range way[to:] {
			fd.Close()
		}
		way = slices.Delete(way, to, len(way))
	}
	for links, rest := 0, path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			back(max(1, len(way)-1))
			continue
		}
		next, target, err := stepIn(way[len(way)-1], name)
		if err == nil && next == nil {
			if links++; links > maxFollowed {
				err = unix.ELOOP
			}
			if strings.HasPrefix(target, "/") {
				back(1)
			}
			rest = target + "/" + rest
		} else if err == nil {
			way = append(way, next)
		}
		if err == nil && len(way) > maxDepth {
			err = unix.ENAMETOOLONG
		}
		if err != nil {
			back(0)
			return nil, err
		}
	}
	found := way[len(way)-1]
	way = way[:len(way)-1]
	back(0)
	return found, nil
}

// stepIn opens name below dir, or reads where it leads as a symbolic link.
func stepIn(dir *FD, name string) (next *FD, target string, err error) {
	next, err = openat(dir.n, name, pathFlags)
	if err != nil {
		return nil, "", err
	}
	st, err := next.Stat(StatType)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return next, "", nil
	}
	defer next.Close()
	if err != nil {
		return nil, "", err
	}
	var buf [unix.PathMax]byte
	n, err := retry(func() (int, error) { return unix.Readlinkat(next.n, "", buf[:]) })
	if err != nil {
		return nil, "", err
	}
	return nil, string(buf[:n]), nil
}

// functions are the file systems whose regular files are functions of the
// kernel: to open or read one may wait, take away what it gives, or do more.
var functions = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
	unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC, unix.EFIVARFS_MAGIC, unix.PSTOREFS_MAGIC,
	unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC, unix.NSFS_MAGIC,
}

// IsFunction tells whether f lies on a file system that keeps no data. It waits
// for that file system (statfs; of a descriptor opened with O_PATH, 3.12).
func (f *FD) IsFunction() (bool, error) {
	var st unix.Statfs_t
	err := retryErr(func() error { return unix.Fstatfs(f.n, &st) })
	return slices.Contains(functions, int64(st.Type)), err
}
