// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of include/uapi/linux/nsfs.h: the owner (4.9), the type (4.11), and
// those of mount namespaces (6.12).
const (
	nsGetUserNS  = 0xb701
	nsGetType    = 0xb703
	nsMntGetInfo = 0x8010b70a
	nsMntGetNext = 0x8010b70b
	nsMntGetPrev = 0x8010b70c
)

// NamespaceFD is the descriptor of a mount namespace that was opened for reading.
type NamespaceFD struct{ *FD }

// OpenNamespace opens the namespace that a link below /proc leads to, such as "self/ns/mnt". The caller closes it.
func OpenNamespace(link string) (NamespaceFD, error) {
	fd, err := OpenProc(link)
	return NamespaceFD{fd}, err
}

// NamespaceInfo holds the kernel's facts about a mount namespace.
type NamespaceInfo struct {
	ID     uint64 // never used again while the machine runs
	Mounts uint32 // how many mounts it has
}

// mntNSInfo is struct mnt_ns_info.
type mntNSInfo struct {
	size   uint32
	mounts uint32
	id     uint64
}

// ExpectMountNamespace fails with EINVAL if n is a namespace of another kind than
// those of mounts.
func (n NamespaceFD) ExpectMountNamespace() error {
	kind, err := retryInterrupted(func() (int, error) { return unix.IoctlRetInt(n.number, nsGetType) })
	if err == nil && kind != unix.CLONE_NEWNS {
		return unix.EINVAL
	}
	return err
}

// OwnerUserNamespace returns the inode number of the user namespace that owns the
// namespace. EPERM: it is neither the caller's nor below that.
func (n NamespaceFD) OwnerUserNamespace() (uint64, error) {
	number, err := retryInterrupted(func() (int, error) { return unix.IoctlRetInt(n.number, nsGetUserNS) })
	if err != nil {
		return 0, err
	}
	owner := newFD(number)
	defer owner.Close()
	st, err := owner.Stat(StatIno)
	return st.Ino, err
}

// NamespaceInfo asks about the namespace (6.12; ENOTTY before).
func (n NamespaceFD) NamespaceInfo() (NamespaceInfo, error) {
	_, info, err := n.namespaceIoctl(nsMntGetInfo)
	return info, err
}

// NextNamespace opens the mount namespace after n in the kernel's order, which
// is not the order of creation; ENOENT after the last. Needs CAP_SYS_ADMIN in
// the initial user namespace and, with it, the initial PID namespace.
func (n NamespaceFD) NextNamespace() (NamespaceFD, NamespaceInfo, error) {
	return n.adjacentNamespace(nsMntGetNext)
}

// PrevNamespace is NextNamespace in the other direction.
func (n NamespaceFD) PrevNamespace() (NamespaceFD, NamespaceInfo, error) {
	return n.adjacentNamespace(nsMntGetPrev)
}

func (n NamespaceFD) adjacentNamespace(request uintptr) (NamespaceFD, NamespaceInfo, error) {
	number, info, err := n.namespaceIoctl(request)
	if err != nil {
		return NamespaceFD{}, NamespaceInfo{}, err
	}
	return NamespaceFD{newFD(number)}, info, nil
}

func (n NamespaceFD) namespaceIoctl(request uintptr) (int, NamespaceInfo, error) {
	info := mntNSInfo{size: uint32(unsafe.Sizeof(mntNSInfo{}))}
	number, err := retryInterrupted(func() (int, error) {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n.number), request, uintptr(unsafe.Pointer(&info)))
		if errno != 0 {
			return -1, errno
		}
		return int(r), nil
	})
	return number, NamespaceInfo{ID: info.id, Mounts: info.mounts}, err
}

// EnterMountNamespace moves the calling thread into the mount
// namespace; root and working directory become that namespace's root. Only inside
// OnThread: elsewhere the kernel refuses with EINVAL. It opens Procfs first:
// the new namespace may have no /proc, or a forged one.
func (n NamespaceFD) EnterMountNamespace() error {
	if _, err := Procfs(); err != nil {
		return err
	}
	return unix.Setns(n.number, unix.CLONE_NEWNS)
}

// UnshareMounts gives the calling thread a copy of its mount namespace. Only inside OnThread. It opens Procfs first: a
// /proc that is opened in the copy may be unmounted there.
func UnshareMounts() error {
	if _, err := Procfs(); err != nil {
		return err
	}
	return unix.Unshare(unix.CLONE_NEWNS)
}

// InMountsCopy runs fn with the calling thread in a copy of its mount namespace,
// and takes it back. Only inside OnThread. The copy holds everything that is
// mounted in the original until then. Mounts that share do so with their copies.
func InMountsCopy(fn func() error) error {
	return BesideMountsCopy(func(func(func() error) error) error { return fn() })
}

// BesideMountsCopy is InMountsCopy for a function that has some things done in
// the original: home runs them there, and takes the thread to the copy again.
func BesideMountsCopy(fn func(home func(func() error) error) error) error {
	if !InPrivateThread() {
		return unix.EINVAL
	}
	original, err := savePosition()
	if err != nil {
		return err
	}
	defer original.closeAll()
	if err := UnshareMounts(); err != nil {
		return err
	}
	err = fn(func(act func() error) error {
		copied, err := savePosition()
		if err != nil {
			return err
		}
		defer copied.closeAll()
		if err := original.restore(); err != nil {
			return err
		}
		return errors.Join(act(), copied.restore())
	})
	return errors.Join(err, original.restore())
}

// threadPosition is where a thread was.
type threadPosition struct {
	mountNamespace NamespaceFD
	root, dir      *FD
}

func savePosition() (threadPosition, error) {
	var (
		w    threadPosition
		errs [3]error
	)
	w.mountNamespace, errs[0] = OpenNamespace(ThreadProc("ns/mnt"))
	w.root, errs[1] = openat(unix.AT_FDCWD, "/", pathFlags|unix.O_DIRECTORY)
	w.dir, errs[2] = openat(unix.AT_FDCWD, ".", pathFlags|unix.O_DIRECTORY)
	if err := errors.Join(errs[:]...); err != nil {
		w.closeAll()
		return threadPosition{}, err
	}
	return w, nil
}

// restore brings the calling thread there.
func (w threadPosition) restore() error {
	if err := w.mountNamespace.EnterMountNamespace(); err != nil {
		return err
	}
	if err := unix.Fchdir(w.root.number); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Fchdir(w.dir.number)
}

func (w threadPosition) closeAll() {
	w.mountNamespace.Close()
	w.root.Close()
	w.dir.Close()
}
