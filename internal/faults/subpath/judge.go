// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
)

// Verdict is the judgement of a bind.
type Verdict string

// Verdicts.
const (
	// Alive: the source is there, or nothing says that it is not.
	Alive Verdict = "Alive"
	// Stale: no container can be started with this bind, or not with what the subPath names now.
	Stale Verdict = "Stale"
	// SourceGone: the source was deleted, and the volume has no such name any more. Without the bind the kubelet would
	// put an empty directory in its place.
	SourceGone Verdict = "SourceGone"
	// WrongSource: the bind shows the volume itself, or a directory above the one that the subPath names, and no link in the
	// volume explains that now.
	WrongSource Verdict = "WrongSource"
	// Unproven: the kernel says deleted, but it cannot be proven that this is so; or the bind could not be looked at.
	Unproven Verdict = "Unproven"
	// OfVolume: the volume itself is not right, and is judged with all binds of it as a volume.
	OfVolume Verdict = "OfVolume"
)

// isFault reports whether there is something to say about such a bind.
func (v Verdict) isFault() bool { return v != Alive && v != OfVolume }

// Code is the fault that the bind is proven to have; empty: it has none, or that is not proven.
func (b Bind) Code() fault.Code { return faultCodes[b.Verdict] }

// judgeBind decides about the mount st that is at the place of a bind, given how it compares with what the subPath
// names now.
func judgeBind(state mount.State, now relation) (Verdict, string) {
	switch {
	case state.Deleted && now == removedByWriter:
		return SourceGone, "the source was deleted, and the volume has no entry of that name any more"
	case state.Deleted && state.Gone:
		return Stale, "the root of the mount is deleted: its link count is 0"
	case state.Deleted && isLocalType(state.FSType):
		return Stale, fmt.Sprintf("the name of the mount's root is deleted; the file has %d other links, but the kernel refuses to bind "+
			"a name that is gone", state.Nlink)
	case state.Deleted:
		return Unproven, fmt.Sprintf("the kernel marks the root of the mount as deleted, but its link count is %d: a file system of "+
			"type %q may have forgotten the name and still have the file", state.Nlink, state.FSType)
	case now == differentInode:
		return Stale, "the source was moved away, and the subPath names a new file"
	case now == otherFilesystem:
		return Unproven, "the subPath names a file on another file system; a mount may be missing"
	}
	return Alive, "the source is alive"
}

// relation is how a bind compares with the entry that its subPath names now.
type relation string

const (
	unknownRelation relation = ""
	sameFile        relation = "same"
	differentInode  relation = "another"
	otherFilesystem relation = "elsewhere" // another, on a file system that may only show because one that belongs there is not mounted
	entryAbsent     relation = "absent"
	removedByWriter relation = "emptied" // absent, from a volume whose content was replaced
)

// IsAsked reports whether Ask asks file systems of that type: of others, the kernel proves all that can be known.
func IsAsked(fsType string) bool { return !isLocalType(fsType) }

// isLocalType reports whether a file system answers from this machine, and numbers its files for good.
func isLocalType(fsType string) bool {
	return slices.Contains([]string{"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs"}, fsType)
}
