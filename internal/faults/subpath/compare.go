// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"fmt"
	"path"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// comparison is how a bind compares with the entry that its subPath names now, and the observations about that.
type comparison struct {
	Relation relation `json:"relation,omitempty"`
	Observed string   `json:"seen,omitempty"`
	// Whole is whether the bind shows the volume's own root, or a directory on the way to the subPath that the pod's spec asks
	// for. Above names that directory; empty: the root.
	Whole bool   `json:"whole,omitempty"`
	Above string `json:"above,omitempty"`
	// Asked is the answer of the file system; nil: it is local, or was not asked.
	Asked *answers `json:"asked,omitempty"`
}

// compareWithNow looks at the entry that the subPath names now. Nothing but local file systems is asked: of others, the answers that
// were given before count. Whatever cannot be looked at, or is not there for certain, is unknown.
func (s target) compareWithNow(state mount.State) comparison {
	if !isLocalType(state.FSType) {
		if s.answers == nil || !sameMount(s.answers.Bind.ID, state.ID) {
			return comparison{}
		}
		return comparison{Relation: s.answers.relation(), Whole: s.answers.showsVolume(), Asked: s.answers}
	}
	bound, ok := s.boundRoot(state)
	if !ok {
		return comparison{}
	}
	volume, err := s.openVolume()
	if err != nil {
		return comparison{}
	}
	defer volume.close()
	name := s.nameInVolume(volume, state)
	if name == "" || !volume.isLocalTo(bound, state) {
		return comparison{}
	}
	whole, above := s.pod != nil && path.Clean(name) != "." && sameInode(bound, volume.state), ""
	if s.pod != nil && !whole && bound.IsDir() {
		above, whole = volume.directoryAbove(name, bound)
	}
	now, err := volume.statName(name)
	var c comparison
	switch {
	case errors.Is(err, sys.ENOENT), errors.Is(err, sys.ENOTDIR):
		// The kubelet or a driver has written a volume again; containers decide which entries a volume of theirs has.
		if c.Relation = entryAbsent; volume.hasAtomicWriter() {
			c.Relation, c.Observed = removedByWriter, fmt.Sprintf("%q has no %q", volume.path, name)
		}
	case err != nil:
	default:
		c = volume.compareFiles(bound, now, name)
		if s.pod == nil && (c.Relation == differentInode || c.Relation == otherFilesystem) { // only the spec can settle that
			c = comparison{}
		}
	}
	if c.Relation != sameFile {
		c.Whole, c.Above = whole, above
	}
	return c
}

// directoryAbove is the directory on the way to a subPath that is the given one, in words.
func (v openedVolume) directoryAbove(name string, bound sys.Stat) (text string, ok bool) {
	name = path.Clean(name)
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if found, err := v.statOnce(dir); err == nil && sameInode(found, bound) {
			return fmt.Sprintf("%q, a directory above %q", dir, name), true
		}
	}
	return "", false
}

func sameInode(a, b sys.Stat) bool { return a.Ino == b.Ino && a.Major == b.Major && a.Minor == b.Minor }

// sameMount reports whether both mean one mount. The kernel's mark on its root may have come in between.
func sameMount(a, b mount.ID) bool {
	a.Root, _ = mountinfo.Deleted(a.Root)
	b.Root, _ = mountinfo.Deleted(b.Root)
	return a.Same(b)
}

// boundRoot is the file that is the root of the mount st. ok is false if that is no longer the one at its point.
func (s target) boundRoot(state mount.State) (sys.Stat, bool) {
	if s.root != nil {
		return *s.root, true
	}
	fd, err := s.node.View().Lookup(state.Point)
	if err != nil {
		return sys.Stat{}, false
	}
	defer fd.Close()
	bound, err := fd.Stat(sys.StatIno | sys.StatUniqueID)
	if err != nil {
		return sys.Stat{}, false
	}
	if state.UniqueID != 0 && bound.Has(sys.StatUniqueID) {
		return bound, bound.MountID == state.UniqueID
	}
	again, err := mount.InspectIn(state.Point, s.node.TableInside)
	return bound, err == nil && again.Same(state.ID)
}

// compareFiles compares two files.
func (v openedVolume) compareFiles(bound, now sys.Stat, name string) comparison {
	oneDevice := bound.Major == now.Major && bound.Minor == now.Minor
	switch {
	case oneDevice && bound.Ino == now.Ino:
		return comparison{Relation: sameFile}
	case !oneDevice && !v.state.MountRoot:
		return comparison{Relation: otherFilesystem, Observed: fmt.Sprintf("%q in %q is on device %d:%d, and nothing is mounted there", name, v.path,
			now.Major, now.Minor)}
	}
	return comparison{Relation: differentInode, Observed: fmt.Sprintf("inode %d of device %d:%d is bound, and %q in %q is inode %d of device %d:%d",
		bound.Ino, bound.Major, bound.Minor, name, v.path, now.Ino, now.Major, now.Minor)}
}
