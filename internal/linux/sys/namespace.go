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

// NamespaceInfo is what the kernel reports about a mount namespace.
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

// ExpectMountNamespace fails with EINVAL if f is a namespace of another kind than
// those of mounts. A kernel before 4.11 does not give the kind, and setns(2) alone
// refuses there.
func (f *FD) ExpectMountNamespace() error {
	kind, err := retryInterrupted(func() (int, error) { return unix.IoctlRetInt(f.number, nsGetType) })
	switch {
	case err == unix.ENOTTY:
		return nil
	case err == nil && kind != unix.CLONE_NEWNS:
		return unix.EINVAL
	}
	return err
}

// OwnerUserNamespace returns the inode number of the user namespace that owns the
// namespace behind f. EPERM: it is neither the caller's nor below that.
func (f *FD) OwnerUserNamespace() (uint64, error) {
	n, err := retryInterrupted(func() (int, error) { return unix.IoctlRetInt(f.number, nsGetUserNS) })
	if err != nil {
		return 0, err
	}
	owner := newFD(n)
	defer owner.Close()
	st, err := owner.Stat(StatIno)
	return st.Ino, err
}

// NamespaceInfo asks about the mount namespace behind f (6.12; ENOTTY before).
func (f *FD) NamespaceInfo() (NamespaceInfo, error) {
	_, info, err := f.namespaceIoctl(nsMntGetInfo)
	return info, err
}

// NextNamespace opens the mount namespace after f in the kernel's order, which
// is not the order of creation; ENOENT after the last. Needs CAP_SYS_ADMIN in
// the initial user namespace and, with it, the initial PID namespace.
func (f *FD) NextNamespace() (*FD, NamespaceInfo, error) {
	return f.adjacentNamespace(nsMntGetNext)
}

// PrevNamespace is NextNamespace in the other direction.
func (f *FD) PrevNamespace() (*FD, NamespaceInfo, error) {
	return f.adjacentNamespace(nsMntGetPrev)
}

func (f *FD) adjacentNamespace(request uintptr) (*FD, NamespaceInfo, error) {
	n, info, err := f.namespaceIoctl(request)
	if err != nil {
		return nil, NamespaceInfo{}, err
	}
	return newFD(n), info, nil
}

func (f *FD) namespaceIoctl(request uintptr) (int, NamespaceInfo, error) {
	info := mntNSInfo{size: uint32(unsafe.Sizeof(mntNSInfo{}))}
	n, err := retryInterrupted(func() (int, error) {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.number), request, uintptr(unsafe.Pointer(&info)))
		if errno != 0 {
			return -1, errno
		}
		return int(r), nil
	})
	return n, NamespaceInfo{ID: info.id, Mounts: info.mounts}, err
}

// EnterMountNamespace moves the calling thread into the mount namespace behind
// f; root and working directory become that namespace's root. Only inside
// OnThread: elsewhere the kernel refuses with EINVAL. It opens Procfs first:
// the new namespace may have no /proc, or a forged one.
func (f *FD) EnterMountNamespace() error {
	if _, err := Procfs(); err != nil {
		return err
	}
	return unix.Setns(f.number, unix.CLONE_NEWNS)
}

// UnshareMounts gives the calling thread a copy of its mount namespace. Only
// inside OnThread. It opens Procfs first: what is opened in the copy may be
// unmounted there.
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
	mountNamespace, root, dir *FD
}

func savePosition() (threadPosition, error) {
	var (
		w    threadPosition
		errs [3]error
	)
	w.mountNamespace, errs[0] = OpenProc(ThreadProc("ns/mnt"))
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
