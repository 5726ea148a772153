// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mount acts on mounts through descriptors: it finds the mount at a path, and unmounts exactly this mount, or
// nothing.
//
// A path is a poor name for a mount: between the inspection and the unmount another mount may have come in its place or
// on top. So Inspect returns an ID that the kernel never reuses, if it has one (6.8), and otherwise all known facts
// (number, root, point, device, parent). Unmount opens the path again, compares, acts on the open descriptor, and reads
// the mount table afterwards. Replace does the same, and at no moment is the place without a mount.
//
// It decides nothing: its callers know whether a mount may go. It does not wait for file systems: paths are opened with
// O_PATH, and files are read from the kernel's cache. A path that leads over a file system that may hang is only
// followed as far as that cache goes. Unmounting the last mount of a network file system may wait for it; callers do
// that in a process that they can lose.
//
// All verbs work in the mount namespace of the calling thread; mountns runs
// them in another. They rest on statmount(2), statx(2), openat2(2), umount2(2),
// and proc_pid_mountinfo(5).
package mount

import (
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ID names one mount.
type ID struct {
	// UniqueID is the kernel's number for it, never used again while the machine
	// runs; 0 on kernels before 6.8.
	UniqueID uint64 `json:"unique,omitempty"`
	// MountInfoID is its number in mountinfo, used again once the mount is gone.
	MountInfoID int `json:"id"`
	// Parent is the number in mountinfo of the mount that it is mounted on.
	Parent int `json:"parent"`
	// Major and Minor are the file system's device.
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Root is the part of the file system that is mounted, with the kernel's
	// mark "//deleted" where that name has been unlinked.
	Root string `json:"root"`
	// Point is where it is mounted.
	Point string `json:"point"`
}

// IDOf identifies a mount that was listed.
func IDOf(m mountns.Mount) ID {
	return ID{
		UniqueID: m.Unique, MountInfoID: m.ID, Parent: m.Parent, Major: m.Major, Minor: m.Minor, Root: m.Root, Point: m.Point,
	}
}

// Same reports whether both mean one mount. The unique numbers decide if both have
// one; otherwise everything else must agree.
func (id ID) Same(other ID) bool {
	if id.UniqueID != 0 && other.UniqueID != 0 {
		return id.UniqueID == other.UniqueID
	}
	id.UniqueID, other.UniqueID = 0, 0
	return id == other
}

// String is the mount for people: number, root and point.
func (id ID) String() string {
	number := "mount " + strconv.Itoa(id.MountInfoID)
	if id.UniqueID != 0 {
		number += " (" + strconv.FormatUint(id.UniqueID, 10) + ")"
	}
	return number + " of " + strconv.Quote(id.Root) + " at " + strconv.Quote(id.Point)
}

// State holds the facts that the kernel knows about a mount by itself, without its file system.
type State struct {
	ID
	// FSType is the type, with the subtype if the kernel gives it.
	FSType string `json:"fsType"`
	// Source names the origin of the file system; empty if the kernel does not give it (6.8 to 6.12).
	Source string `json:"source,omitempty"`
	// Deleted is the kernel's mark: the name of the root has been unlinked. The
	// content may live on, see Gone.
	Deleted bool `json:"deleted"`
	// Gone is a link count of zero: the content has no name left anywhere.
	Gone bool `json:"gone"`
	// Nlink and Inode belong to the mount's root; Dir: it is a directory.
	Nlink uint32 `json:"nlink"`
	Inode uint64 `json:"inode"`
	Dir   bool   `json:"dir"`
	// Changed is when the root's inode last changed (ctime, UTC): for an unlinked
	// file, when its name went, unless its mode or owner has changed since.
	Changed time.Time `json:"changed,omitzero"`
	// ReadOnly is the mount's own option, not that of its file system.
	ReadOnly bool `json:"readOnly"`
	// Attr is all that the mount allows.
	Attr sys.MountAttr `json:"-"`
	// Shared is the peer group to which an unmount spreads, Master the one from
	// which it arrives; 0 is none.
	Shared int `json:"shared,omitempty"`
	Master int `json:"master,omitempty"`
}

// Inspect finds the mount at point in the calling thread's namespace. point is absolute and clean and has no symbolic
// link in it (ELOOP). ErrNotMounted: there is a file or directory, but no mount. ENOENT: nothing. ErrMayBlock: the
// lookup would have to wait for another file system.
func Inspect(point string) (State, error) { return InspectIn(point, readOwnTable) }

// InspectIn is Inspect with the mount table of that namespace. Only kernels before 6.8 need it, and Inspect reads it
// each time there. A mount that the table does not have yet is ErrNotMounted.
func InspectIn(point string, table func() (*mountinfo.Table, error)) (State, error) {
	state, _, err := InspectRoot(point, table)
	return state, err
}

// InspectRoot is InspectIn with the root of the mount as its own file system numbers it: the device of a State is that of the mount
// table, and some file systems show another one for their files.
func InspectRoot(point string, table func() (*mountinfo.Table, error)) (State, sys.Stat, error) {
	source := chooseMountSource()
	if _, ok := source.(tableSource); ok {
		source = tableSource{table}
	}
	fd, err := mountns.Lookup(0, point)
	if err != nil {
		return State{}, sys.Stat{}, &Error{Op: "look up", Target: point, Err: err}
	}
	defer fd.Close()
	state, err := source.identify(fd, point)
	var root sys.Stat
	if err == nil {
		root, err = fd.Stat(sys.StatType | sys.StatIno)
	}
	if err != nil {
		return State{}, sys.Stat{}, &Error{Op: "inspect", Target: point, Err: err}
	}
	return state, root, nil
}
