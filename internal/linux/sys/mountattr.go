// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"strings"

	"golang.org/x/sys/unix"
)

// MountAttr is the attributes of a mount, not of its file system: MOUNT_ATTR_ of mount_setattr(2). No kind of access
// time is relatime.
type MountAttr uint64

// The attributes of a mount.
const (
	AttrReadOnly    MountAttr = unix.MOUNT_ATTR_RDONLY
	AttrNoSUID      MountAttr = unix.MOUNT_ATTR_NOSUID
	AttrNoDev       MountAttr = unix.MOUNT_ATTR_NODEV
	AttrNoExec      MountAttr = unix.MOUNT_ATTR_NOEXEC
	AttrNoATime     MountAttr = unix.MOUNT_ATTR_NOATIME
	AttrStrictATime MountAttr = unix.MOUNT_ATTR_STRICTATIME
	AttrNoDirATime  MountAttr = unix.MOUNT_ATTR_NODIRATIME
	AttrNoSymfollow MountAttr = unix.MOUNT_ATTR_NOSYMFOLLOW
	// AttrIDMap: owners of files are other users there than in the file system.
	AttrIDMap MountAttr = unix.MOUNT_ATTR_IDMAP
)

// attrATime is the bits of the kind of access time.
const attrATime = unix.MOUNT_ATTR__ATIME | unix.MOUNT_ATTR_NODIRATIME

// Has reports whether a has all of other.
func (a MountAttr) Has(other MountAttr) bool { return a&other == other }

// Attr is the attributes of the mount, with StatmountBasic.
func (m *MountStat) Attr() MountAttr { return MountAttr(m.u64(64)) }

var attrNames = map[string]MountAttr{
	"ro": AttrReadOnly, "nosuid": AttrNoSUID, "nodev": AttrNoDev, "noexec": AttrNoExec,
	"noatime": AttrNoATime, "nodiratime": AttrNoDirATime, "nosymfollow": AttrNoSymfollow, "idmapped": AttrIDMap,
}

// ParseMountAttr reads the options of a mount as mountinfo has them.
func ParseMountAttr(options string) MountAttr {
	attr := AttrStrictATime // has no name there
	for name := range strings.SplitSeq(options, ",") {
		if name == "noatime" || name == "relatime" {
			attr &^= AttrStrictATime
		}
		attr |= attrNames[name]
	}
	return attr
}

// LimitTree gives a tree that is attached nowhere the limits of another mount on
// top of its own, and that mount's kind of access time. It stops the tree from
// sharing with the mount that it was copied from (5.12, ENOSYS before).
func LimitTree(tree *FD, attr MountAttr) error {
	return unix.MountSetattr(tree.number, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:    uint64(attr &^ AttrIDMap),
		Attr_clr:    attrATime,
		Propagation: unix.MS_PRIVATE,
	})
}

// SetMountPropagation changes how the mount whose root f is shares with its
// copies. Before 5.12 the mount has to be attached, and the caller inside OnThread.
func SetMountPropagation(f *FD, p Propagation) error {
	err := unix.MountSetattr(f.number, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: uint64(p)})
	if err == ENOSYS {
		err = mountFD(f, uintptr(p))
	}
	return err
}
