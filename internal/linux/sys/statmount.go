// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The fields that Statmount can return. Strings cost about a microsecond more than the rest, Root and Point two or
// three: request them only where needed.
const (
	StatmountSuper   = 0x1   // Device, Magic
	StatmountBasic   = 0x2   // ID, the re-used IDs, Attr, peer groups
	StatmountRoot    = 0x8   // Root
	StatmountPoint   = 0x10  // Point
	StatmountType    = 0x20  // FSType
	StatmountSubtype = 0x100 // FSType's second part, 6.13
	StatmountSource  = 0x200 // Source, 6.13
)

// MountRef names a mount to the kernel.
type MountRef struct {
	Namespace uint64 // ID of the mount namespace; 0 is the calling thread's
	Mount     uint64 // unique mount ID
}

// RootOf stands for the root mount of a namespace in Listmount.
const RootOf = ^uint64(0)

// mntIDReq is struct mnt_id_req, version 1 (with the namespace).
type mntIDReq struct {
	size  uint32
	nsFD  uint32
	mount uint64
	param uint64
	ns    uint64
}

// reqSizeVer0 is struct mnt_id_req of 6.8, which has no namespace.
const reqSizeVer0 = 24

func newReq(ref MountRef, param uint64) mntIDReq {
	req := mntIDReq{size: uint32(unsafe.Sizeof(mntIDReq{})), mount: ref.Mount, param: param, ns: ref.Namespace}
	if ref.Namespace == 0 {
		req.size = reqSizeVer0
	}
	return req
}

// MountStat is the kernel's description of one mount (struct statmount). Load
// fills it, again and again, without allocating; strings it gives out are
// copies, byte slices are valid until the next Load.
type MountStat struct {
	buf []byte
}

const (
	statmountFixed = 512
	statmountMax   = 1 << 20
)

// Load asks about one mount (6.8; namespaces other than the caller's: 6.11).
// ENOENT: there is no such mount in that namespace, now or ever again.
func (m *MountStat) Load(ref MountRef, mask uint64) error {
	if m.buf == nil {
		m.buf = make([]byte, 4096)
	}
	for {
		req := newReq(ref, mask)
		err := retryInterruptedError(func() error {
			_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)),
				uintptr(unsafe.Pointer(&m.buf[0])), uintptr(len(m.buf)), 0, 0, 0)
			if errno != 0 {
				return errno
			}
			return nil
		})
		if err != unix.EOVERFLOW || len(m.buf) >= statmountMax {
			return err
		}
		m.buf = make([]byte, 4*len(m.buf))
	}
}

// hasFields reports whether the kernel filled in everything of mask. A string that is
// empty counts as not filled in.
func (m *MountStat) hasFields(mask uint64) bool { return m.u64(8)&mask == mask }

// Device is the number of the file system's device.
func (m *MountStat) Device() (major, minor uint32) { return m.u32(16), m.u32(20) }

// Magic is the number of the file system's type, as statfs(2) gives it.
func (m *MountStat) Magic() uint64 { return m.u64(24) }

// ID is the mount's unique ID.
func (m *MountStat) ID() uint64 { return m.u64(40) }

// Parent is the unique ID of the mount that it is mounted on.
func (m *MountStat) Parent() uint64 { return m.u64(48) }

// ReusedID is the mount ID that mountinfo shows.
func (m *MountStat) ReusedID() int { return int(m.u32(56)) }

// ReusedParent is the parent ID that mountinfo shows.
func (m *MountStat) ReusedParent() int { return int(m.u32(60)) }

// PeerGroup is the peer group that the mount shares with; 0 is none.
func (m *MountStat) PeerGroup() int { return int(m.u64(80)) }

// Master is the peer group that the mount receives from; 0 is none.
func (m *MountStat) Master() int { return int(m.u64(88)) }

// Root is the root of the mount in its file system, as it is, with the mark
// "//deleted" where that name has been unlinked.
func (m *MountStat) Root() []byte { return m.stringAt(104, StatmountRoot) }

// Point is where the mount is, relative to the caller's root, or to the
// namespace's root for another namespace.
func (m *MountStat) Point() []byte { return m.stringAt(108, StatmountPoint) }

// FSType is the file system's type, with its subtype ("fuse.sshfs") if both were requested and the kernel gives it.
func (m *MountStat) FSType() string {
	name := string(m.stringAt(36, StatmountType))
	if sub := m.stringAt(120, StatmountSubtype); len(sub) > 0 {
		name += "." + string(sub)
	}
	return name
}

// Source names the origin of the file system.
func (m *MountStat) Source() []byte { return m.stringAt(124, StatmountSource) }

func (m *MountStat) u32(off int) uint32 { return binary.NativeEndian.Uint32(m.buf[off:]) }
func (m *MountStat) u64(off int) uint64 { return binary.NativeEndian.Uint64(m.buf[off:]) }

// stringAt is the string whose offset lies at off, nil if the kernel gave none.
func (m *MountStat) stringAt(off int, mask uint64) []byte {
	if !m.hasFields(mask) {
		return nil
	}
	start := statmountFixed + int(m.u32(off))
	if start >= len(m.buf) {
		return nil
	}
	text, _, _ := bytes.Cut(m.buf[start:], []byte{0})
	return text
}

// Listmount fills ids with the unique IDs of the mounts below ref, at any
// depth, after the one called after (0 from the start), and returns how many.
// Fewer than len(ids) means that these were the last.
func Listmount(ref MountRef, after uint64, ids []uint64) (int, error) {
	if len(ids) == 0 {
		return 0, unix.EINVAL
	}
	req := newReq(ref, after)
	return retryInterrupted(func() (int, error) {
		n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&req)),
			uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	})
}

// maxIDsPerCall is how many mounts listmount gives at once.
const maxIDsPerCall = 1_000_000

// ListAllMounts lists the unique IDs of the mounts of a namespace, ascending, in ids[:0],
// which grows as needed. 0 is the calling thread's namespace.
func ListAllMounts(ids []uint64, namespace uint64) ([]uint64, error) {
	ids = ids[:0]
	for {
		after := uint64(0)
		if len(ids) > 0 {
			after = ids[len(ids)-1]
		}
		ids = slices.Grow(ids, 64)
		free := ids[len(ids):cap(ids)]
		free = free[:min(len(free), maxIDsPerCall)]
		n, err := Listmount(MountRef{Namespace: namespace, Mount: RootOf}, after, free)
		if err != nil {
			return nil, err
		}
		if ids = ids[:len(ids)+n]; n < len(free) {
			return ids, nil
		}
	}
}
