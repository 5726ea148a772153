// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// The fields that Stat can return. A field is valid only if it is in Stat.Mask.
const (
	StatType     = unix.STATX_TYPE
	StatNlink    = unix.STATX_NLINK
	StatIno      = unix.STATX_INO
	StatAccessed = unix.STATX_ATIME
	StatChanged  = unix.STATX_CTIME
	StatBorn     = unix.STATX_BTIME         // of some file systems
	StatMountID  = unix.STATX_MNT_ID        // 5.8; the number in mountinfo, used again after an unmount
	StatUniqueID = unix.STATX_MNT_ID_UNIQUE // 6.8; never used again; excludes StatMountID
)

// Stat is the kernel's cached knowledge of an open file.
type Stat struct {
	Mask         uint32 // the fields that the kernel filled in
	Mode         uint16 // only file type bits are requested
	Nlink        uint32
	Ino          uint64
	Accessed     time.Time // of the file's content (atime), as far as the mount notes it; UTC
	Changed      time.Time // of the inode (ctime), which a name that comes or goes changes, too; UTC
	Major, Minor uint32    // device of the file system
	// Born is when the file was made (UTC). With the inode's number, which may be used again, it distinguishes a file
	// from its successor.
	Born time.Time
	// RdevMajor and RdevMinor are the device that a device node stands for.
	RdevMajor, RdevMinor uint32
	MountID              uint64 // as StatMountID or StatUniqueID, by Mask
	// MountRoot: the file is the root of a mount. RootKnown: the kernel reports it (5.8).
	MountRoot, RootKnown bool
}

// Has reports whether the kernel filled in all fields of mask.
func (s Stat) Has(mask uint32) bool { return s.Mask&mask == mask }

// IsDir reports whether the file is a directory.
func (s Stat) IsDir() bool { return s.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsLink reports whether the file is a symbolic link.
func (s Stat) IsLink() bool { return s.Mode&unix.S_IFMT == unix.S_IFLNK }

// IsRegular reports whether the file is a regular one.
func (s Stat) IsRegular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }

// IsBlockDevice reports whether the file is the node of a block device.
func (s Stat) IsBlockDevice() bool { return s.Mode&unix.S_IFMT == unix.S_IFBLK }

// IsCharDevice reports whether the file is the node of a character device.
func (s Stat) IsCharDevice() bool { return s.Mode&unix.S_IFMT == unix.S_IFCHR }

// IsSocket reports whether the file is a socket.
func (s Stat) IsSocket() bool { return s.Mode&unix.S_IFMT == unix.S_IFSOCK }

// statxNoSync keeps statx from a request to a remote or user-space file system.
const statxNoSync = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT

// Stat reads the kernel's cached facts about the file; it never waits.
func (f *FD) Stat(mask uint32) (Stat, error) {
	return statx(f.number, "", statxNoSync|unix.AT_EMPTY_PATH, mask)
}

// StatAt is Stat of the entry called name in directory f, after whatever is
// mounted there. It leaves no reference to that mount behind.
func (f *FD) StatAt(name string, mask uint32) (Stat, error) {
	return statx(f.number, name, statxNoSync|unix.AT_SYMLINK_NOFOLLOW, mask)
}

func statx(dir int, path string, flags int, mask uint32) (Stat, error) {
	var x unix.Statx_t
	if err := retryInterruptedError(func() error { return unix.Statx(dir, path, flags, int(mask), &x) }); err != nil {
		return Stat{}, err
	}
	stat := Stat{
		Mask: x.Mask, Mode: x.Mode, Nlink: x.Nlink, Ino: x.Ino,
		Major: x.Dev_major, Minor: x.Dev_minor, MountID: x.Mnt_id,
		RdevMajor: x.Rdev_major, RdevMinor: x.Rdev_minor,
		MountRoot: x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
		RootKnown: x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}
	if stat.Has(StatAccessed) {
		stat.Accessed = time.Unix(x.Atime.Sec, int64(x.Atime.Nsec)).UTC()
	}
	if stat.Has(StatChanged) {
		stat.Changed = time.Unix(x.Ctime.Sec, int64(x.Ctime.Nsec)).UTC()
	}
	if stat.Has(StatBorn) {
		stat.Born = time.Unix(x.Btime.Sec, int64(x.Btime.Nsec)).UTC()
	}
	return stat, nil
}

// statfs asks the file system about itself, and waits for it (of a descriptor opened
// with O_PATH, 3.12).
func (f *FD) statfs() (st unix.Statfs_t, err error) {
	err = retryInterruptedError(func() error { return unix.Fstatfs(f.number, &st) })
	return st, err
}
