// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// roots knows which mounts have an unlinked root, and finds out about many by
// reading few.
//
// A mount's root is one directory entry of the kernel for as long as the mount
// lives, and all copies of a mount have the same one. Reading it is dear: the
// kernel has to write down a path. So mounts with the same root are put into a
// class, and a pass reads one mount of each class: when its entry is unlinked
// or moved, so is that of all the others.
//
// That two mounts have the same root is concluded from their showing the same
// path on the same file system at the same time: a path names one living entry.
// "At the same time" means that a mount of the class showed it both before and
// after.
type roots struct {
	// read gives the device and the root of a mount, as statmount does. The
	// root is valid until the next call.
	read    func(sys.MountRef) (device uint64, root []byte, err error)
	classes map[place]*class
	pass    int
}

// place is a path on a file system.
type place struct {
	device uint64
	path   string
}

// class is the mounts that have one directory entry for their root.
type class struct {
	place   place
	deleted bool
	pass    int          // the pass in which member was last read
	member  sys.MountRef // a mount that showed place in that pass
	joined  bool         // mounts were added in this pass, and not confirmed yet
	broken  bool         // they could not be confirmed
}

// rooted is what is known of one mount. The zero value knows nothing.
type rooted struct {
	class   *class
	settled bool // nothing about it can change any more
	deleted bool
}

func newRoots(read func(sys.MountRef) (uint64, []byte, error)) *roots {
	return &roots{read: read, classes: map[place]*class{}}
}

// begin starts a pass. What is known of mounts stays valid.
func (r *roots) begin() { r.pass++ }

// look brings what is known of a mount up to date. ENOENT: it is gone.
func (r *roots) look(m *rooted, ref sys.MountRef) error {
	switch {
	case m.settled:
		return nil
	case m.class == nil:
		return r.meet(m, ref, true)
	case m.class.broken:
		m.class = nil
		return r.meet(m, ref, false)
	}
	if m.class.pass != r.pass {
		if err := r.refresh(m.class, ref); err != nil {
			return err
		}
	}
	if m.class.deleted {
		*m = rooted{settled: true, deleted: true}
	}
	return nil
}

// meet reads a mount for the first time and puts it into the class at its
// place, or, where it is not to share, into one of its own.
func (r *roots) meet(m *rooted, ref sys.MountRef, share bool) error {
	device, root, err := r.read(ref)
	if err != nil {
		return err
	}
	if deleted, ever := final(root); ever {
		m.settled, m.deleted = true, deleted
		return nil
	}
	at := place{device, string(root)}
	if c := r.classes[at]; share && c != nil && r.join(c, at) {
		m.class = c
		return nil
	}
	m.class = &class{place: at, pass: r.pass, member: ref}
	if share {
		r.classes[at] = m.class
	}
	return nil
}

// final tells whether a root is deleted, and whether it stays as it is for
// ever: what is unlinked does, and so does the root of a file system, and a
// name that is no path but one that the file system made up.
func final(root []byte) (deleted, ever bool) {
	_, deleted = mountinfo.Deleted(string(root))
	return deleted, deleted || len(root) < 2 || root[0] != '/'
}

// join tells whether a mount that was just seen at a place belongs to the class
// there: a mount of the class was seen there before, and is seen there now, or
// will be when the pass is confirmed.
func (r *roots) join(c *class, at place) bool {
	if c.pass == r.pass {
		c.joined = true
		return true
	}
	return r.refresh(c, c.member) == nil && c.place == at && !c.deleted
}

// refresh reads one mount of a class for all of them.
func (r *roots) refresh(c *class, ref sys.MountRef) error {
	device, root, err := r.read(ref)
	if err != nil {
		return err
	}
	c.pass, c.member = r.pass, ref
	if c.shows(device, root) {
		return nil
	}
	if r.classes[c.place] == c {
		delete(r.classes, c.place)
	}
	c.place = place{device, string(root)}
	c.deleted, _ = final(root)
	return nil
}

func (c *class) shows(device uint64, root []byte) bool {
	return device == c.place.device && string(root) == c.place.path
}

// confirm ends a pass: it reads once more a mount of every class that others
// joined. Where one is not at its place any more, it cannot be told which of
// them it spoke for; look has to be called once more for every mount.
func (r *roots) confirm() (again bool) {
	for at, c := range r.classes {
		if c.pass != r.pass {
			delete(r.classes, at) // no mount of it is left
			continue
		}
		if !c.joined {
			continue
		}
		c.joined = false
		if device, root, err := r.read(c.member); err != nil || !c.shows(device, root) {
			c.broken, again = true, true
			delete(r.classes, at)
		}
	}
	return again
}
