// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrMayBlock is returned for a path that leads over a file system that may not
// answer, where the kernel's cache does not reach that far.
var ErrMayBlock = errors.New("path may block")

// Lookup opens a path with O_PATH as process pid sees it, or as the calling
// thread does where pid is 0. The path is absolute and clean (EINVAL) and has
// no symbolic link in it (ELOOP). It never waits for a file system that may
// hang: the kernel's cache is asked first, and alone where the way leads over
// one (ErrMayBlock). The mount at the path itself may be of any kind, as its
// root is opened without asking it. For another process it needs the right to
// trace it (EACCES). The caller closes the descriptor.
func Lookup(pid int, name string) (*sys.FD, error) {
	if pid == 0 {
		return lookup(nil, name, name, readWay(0))
	}
	root, err := sys.OpenProcPath(strconv.Itoa(pid) + "/root")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return lookup(root, name, name, readWay(pid))
}

// LookupIn is Lookup of the last part of a path in dir, which the other parts
// were found to be.
func LookupIn(pid int, dir *sys.FD, name string) (*sys.FD, error) {
	return lookup(dir, "/"+path.Base(name), name, readWay(pid))
}

// Batch is many calls of Lookup in a row, by the calling thread in the namespace
// that it is in. They read the mount table once, where it is needed.
type Batch struct {
	table func() ([]mountinfo.Mount, error)
}

// NewBatch has read nothing yet.
func NewBatch() *Batch { return &Batch{table: sync.OnceValues(readWay(0))} }

// Lookup is the function Lookup with pid 0.
func (b *Batch) Lookup(name string) (*sys.FD, error) { return lookup(nil, name, name, b.table) }

// lookup opens part, seen from root where that is not nil; whole is what both
// are together. table gives what is mounted on the way.
func lookup(root *sys.FD, part, whole string, table func() ([]mountinfo.Mount, error)) (*sys.FD, error) {
	if whole != path.Clean(whole) {
		return nil, sys.EINVAL
	}
	fd, err := sys.LookupCached(root, part)
	if err == nil || !uncached(err) {
		return fd, err
	}
	mounts, err := table()
	if err != nil {
		return nil, err
	}
	if err := checkWay(mounts, whole); err != nil {
		return nil, err
	}
	if root == nil {
		return sys.Lookup(part)
	}
	return sys.LookupIn(root, part)
}

// uncached tells whether err says nothing about the path: the cache did not
// know, or the kernel (before 5.12) or a seccomp filter does not let us ask it.
func uncached(err error) bool {
	return slices.ContainsFunc([]error{sys.EAGAIN, sys.EINVAL, sys.ENOSYS, sys.EPERM}, func(target error) bool {
		return errors.Is(err, target)
	})
}

// checkWay refuses a path below a mount whose file system may hang. A root file
// system of that kind is taken for granted, as this program itself runs from
// it. What an overlay is made of cannot be seen here.
func checkWay(mounts []mountinfo.Mount, name string) error {
	for _, m := range mounts {
		if m.Point != "/" && m.Point != name && mountinfo.Within(m.Point, name) && MayHang(m.FSType) {
			return ErrMayBlock
		}
	}
	return nil
}

// readWay reads the mount table for checkWay, as process pid sees it.
func readWay(pid int) func() ([]mountinfo.Mount, error) {
	return func() ([]mountinfo.Mount, error) {
		text, err := Read(pid, nil)
		if err != nil {
			return nil, err
		}
		return mountinfo.ParseBytes(text)
	}
}

// MayHang tells whether a file system of that type, as mountinfo has it, waits
// for another machine or for a process: nothing but a lookup with O_PATH is to
// be asked of it.
func MayHang(fsType string) bool {
	base, _, _ := strings.Cut(fsType, ".")
	switch base {
	case "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "gpfs",
		"lustre", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "virtiofs":
		return true
	}
	return false
}
