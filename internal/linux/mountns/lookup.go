// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrMayBlock is returned for a path that leads over a file system that may not
// answer, where the kernel's cache does not reach that far.
var ErrMayBlock = errors.New("path may block")

// View looks paths up in the mount namespace of the calling thread. It knows the mount table that was read of it: a kernel
// before 6.8 does not say of which type the file system of a file is. The zero value reads the table for each such question,
// which takes long where many mounts are stacked at one place. Only a program that may be lost is to know one: a mount that took
// the place of another since the table was read is taken for that one.
type View struct{ Known *mountinfo.Table }

// Lookup is the function Lookup by the calling thread.
func (v View) Lookup(name string) (*sys.FD, error) {
	return lookup(nil, name, name, pathMounts{known: v.Known})
}

// LookupNotHanging is Lookup of a file that does not lie on a file system that may hang itself (ErrMayBlock).
func (v View) LookupNotHanging(name string) (*sys.FD, error) {
	fd, err := v.Lookup(name)
	if err == nil {
		err = v.NotHanging(name, fd)
	}
	if err != nil {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

// LookupFollowing is Lookup of an absolute path with symbolic links. If it has any, no part of the way may lie on a file
// system that may hang, the end included (ErrMayBlock). resolved is the path with the links replaced that were followed.
func (v View) LookupFollowing(name string) (fd *sys.FD, resolved string, err error) {
	name = path.Clean(name)
	fd, err = v.Lookup(name)
	if !errors.Is(err, sys.ELOOP) {
		return fd, name, err
	}
	return sys.Walk{Check: v.NotHanging}.Resolve(name)
}

// Lookup opens a path with O_PATH as process pid sees it, or as the calling thread does if pid is 0. It is for
// namespaces of this program or of the kubelet; in all others only LookupForeign is to be used. The path is absolute
// and clean (EINVAL) and has no symbolic link in it (ELOOP). It never waits for a file system that may hang: it uses
// the kernel's cache first, and the cache alone if the way leads over such a file system (ErrMayBlock). The mount at
// the path itself may be of any kind, as the open of its root sends it no request. For another process it needs the
// right to trace it (EACCES). The caller closes the descriptor.
func Lookup(pid int, name string) (*sys.FD, error) {
	if pid == 0 {
		return View{}.Lookup(name)
	}
	root, err := sys.OpenProcPath(strconv.Itoa(pid) + "/root")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return lookup(root, name, name, pathMounts{pid: pid})
}

// LookupForeign is Lookup by the calling thread in a namespace that others have made, whose root may be of any file
// system. An overlay may lie on a hanging file system, or such a file system may be mounted just then, and nothing
// shows that: only a process that can be lost may call it.
func LookupForeign(name string) (*sys.FD, error) {
	return lookup(nil, name, name, pathMounts{foreign: true})
}

// LookupForeignIn is LookupForeign of the last part of a path in dir, which the other
// parts were found to be.
func LookupForeignIn(dir *sys.FD, name string) (*sys.FD, error) {
	return lookup(dir, "/"+path.Base(name), name, pathMounts{foreign: true})
}

// lookupKnown is Lookup as process pid sees it from the kernel's cache alone, which serves in every namespace: a path
// that is not in the cache is ErrMayBlock, and before 5.12 that is every path.
func lookupKnown(pid int, name string) (*sys.FD, error) {
	root, err := sys.OpenProcPath(strconv.Itoa(pid) + "/root")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := sys.LookupCached(root, name)
	if err != nil && cacheMiss(err) {
		err = ErrMayBlock
	}
	return fd, err
}

// LookupIn is Lookup of the last part of a path in dir, which the other parts
// were found to be.
func LookupIn(dir *sys.FD, name string) (*sys.FD, error) {
	return lookup(dir, "/"+path.Base(name), name, pathMounts{})
}

// lookup opens part, seen from root if that is not nil; whole is the path of both together.
func lookup(root *sys.FD, part, whole string, w pathMounts) (*sys.FD, error) {
	if whole != path.Clean(whole) {
		return nil, sys.EINVAL
	}
	fd, err := sys.LookupCached(root, part)
	if err == nil || !cacheMiss(err) {
		return fd, err
	}
	if fd, err = w.lookupStepwise(root, part); !errors.Is(err, ErrMayBlock) {
		return fd, err
	}
	var mounts []mountinfo.Mount
	if w.known != nil {
		mounts = w.known.Mounts()
	} else if mounts, err = readMounts(w.pid); err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if MayHang(m.FSType) && (w.foreign || m.Point != "/") && m.Point != whole && mountinfo.Within(m.Point, whole) {
			return nil, ErrMayBlock
		}
	}
	if root == nil {
		return sys.Lookup(part)
	}
	return sys.LookupIn(root, part)
}

// lookupStepwise opens part one component after the other, and asks only directories on file systems that cannot hang. It
// reads no mount table, which takes long if many mounts are stacked at one place. ErrMayBlock: a directory on the way is, or may
// be, on another file system.
func (w pathMounts) lookupStepwise(root *sys.FD, part string) (*sys.FD, error) {
	if w.known == nil && sys.HasStatmount.Probe() != nil { // the table alone shows the mount of a directory
		return nil, ErrMayBlock
	}
	check := func(name string, at *sys.FD) error {
		if name == part { // which gets no request
			return nil
		}
		return View{w.known}.NotHanging(name, at)
	}
	fd, err := sys.Walk{Root: root, NoLinks: true, Check: check}.Open(part)
	if errors.Is(err, sys.ENAMETOOLONG) { // of one step after the other there is no longer way
		err = ErrMayBlock
	}
	return fd, err
}

// cacheMiss reports whether err says nothing about the path: the cache did not
// know, or the kernel (before 5.12) or a seccomp filter does not let us ask it.
func cacheMiss(err error) bool {
	return slices.ContainsFunc([]error{sys.EAGAIN, sys.EINVAL, sys.ENOSYS, sys.EPERM}, func(target error) bool {
		return errors.Is(err, target)
	})
}

// pathMounts holds the facts about the mounts that a path leads over.
type pathMounts struct {
	pid   int              // whose mounts these are; 0 is the calling thread
	known *mountinfo.Table // the table of the calling thread's namespace, if it was read already
	// foreign has the root count as any other mount. Otherwise it is taken for
	// granted, as this program, or the kubelet, itself runs from it.
	foreign bool
}

// NotHanging refuses a file on a file system that may hang (ErrMayBlock), without asking it. It checks for a sys.Walk.
func (v View) NotHanging(_ string, at *sys.FD) error {
	if kind, err := v.FSType(at); err != nil || MayHang(kind) {
		return ErrMayBlock
	}
	return nil
}

// FSType is the type of the file system that an open file is on, as mountinfo has it in the
// namespace of the calling thread.
func (v View) FSType(fd *sys.FD) (string, error) {
	st, err := fd.Stat(sys.StatUniqueID)
	if err != nil {
		return "", err
	}
	if st.Has(sys.StatUniqueID) && sys.HasStatmount.Probe() == nil {
		var m sys.MountStat
		err := m.Load(sys.MountRef{Mount: st.MountID}, sys.StatmountType|sys.StatmountSubtype)
		return m.FSType(), err
	}
	number, err := fd.FDMountID()
	if err != nil {
		return "", err
	}
	var on mountinfo.Mount
	known := false
	if v.Known != nil {
		on, known = v.Known.ByID(number)
	}
	if !known || on.Major != st.Major || on.Minor != st.Minor {
		table, err := Table(0)
		if err != nil {
			return "", err
		}
		if on, known = table.ByID(number); !known {
			return "", sys.ENOENT
		}
	}
	return on.FSType, nil
}

// MayHang reports whether a file system of that type, as mountinfo has it, waits for another machine or for a process:
// it may get no request but a lookup with O_PATH.
func MayHang(fsType string) bool {
	base, _, _ := strings.Cut(fsType, ".")
	switch base {
	case "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "gpfs",
		"lustre", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "virtiofs":
		return true
	}
	return false
}

// OnDisk reports whether a file system of that type, on that device, keeps its files on disks of this machine. Some that do
// have a device number of their own.
func OnDisk(major uint32, fsType string) bool {
	return major != 0 || fsType == "btrfs" || fsType == "zfs" || fsType == "bcachefs"
}

// MayFail reports whether the file system of a mount may fail while others work: it waits for another machine or for a
// process, or it lies on a disk.
func MayFail(major uint32, fsType string) bool { return MayHang(fsType) || OnDisk(major, fsType) }
