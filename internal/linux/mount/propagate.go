// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// attachesByPropagation reports whether trees are put beneath mounts by propagation here. The kernel may have no call
// for it (before 6.5), or its call may need an open mount.
func (t *mountTarget) attachesByPropagation() bool {
	return onlySpread || t.rootUnopenable || sys.HasMoveBeneath.Probe() != nil
}

// onlySpread is set by tests alone, to have a newer kernel do as older ones.
var onlySpread bool

// between is called between any two steps of attachByPropagation. Tests set it.
var between = func(string) {}

// attachByPropagation puts a tree beneath the mount at the point by propagation. A mount that
// spreads to a place where another mount lies comes to lie beneath that (4.11).
// So the tree is attached to a copy of the directory that holds the point, from
// which it spreads to the original. The copy is in a namespace that only this
// thread is in.
//
// A parent that does not share is made a slave of the copy for that time. When the copy goes, be it because this
// process was killed, the kernel gives the parent and the tree the parent's former state: private, or a slave of the
// same master. Only a process that is killed while the parent is made to share leaves a parent that shares with no
// other mount.
func (a *attachment) attachByPropagation(tree *sys.FD) error {
	parent, err := a.openParent()
	if err != nil {
		return err
	}
	defer parent.rootFD.Close()
	parent.treeShares = a.shares && parent.Shared == 0
	if errors.Is(a.logCall("umount2", "MNT_EXPIRE", sys.ExpireMount(a.dir, path.Base(a.id.Point))), sys.EINVAL) {
		return fmt.Errorf("locked in place by the kernel: %w", sys.EINVAL)
	}
	err = sys.BesideMountsCopy(func(home func(func() error) error) error {
		leader, err := parent.attachLeader(home)
		if err != nil {
			return err
		}
		defer leader.Close()
		return parent.attachTree(tree, leader, home)
	})
	if err != nil {
		return err
	}
	between("spread")
	// Another process may have copied the namespace while the parent led, and the kernel may have taken that copy as the
	// master of the parent.
	mounts, err := mountns.Table(0)
	if err != nil {
		return err
	}
	now, ok := mounts.ByID(parent.ID)
	if !ok || now.Shared == parent.Shared && now.Master == parent.Master || parent.Shared != 0 || parent.Master != 0 {
		return nil
	}
	return sys.SetMountPropagation(parent.rootFD, Private)
}

// errStacked: another mount lies beneath the mount at the same place. It cannot be opened, so propagation can put
// nothing between the two.
var errStacked = fmt.Errorf("another mount lies beneath it at the same place: %w", errors.ErrUnsupported)

// parentMount is the mount that another one is mounted on.
type parentMount struct {
	mountinfo.Mount
	rootFD     *sys.FD
	child      *mountTarget
	treeShares bool // a tree that spreads to it is to share, though it does not
}

// setPropagation sets how the parent itself propagates.
func (p parentMount) setPropagation(home func(func() error) error, to Propagation, name string) error {
	return home(func() error {
		return p.child.logCall("mount_setattr", name+" of its parent", sys.SetMountPropagation(p.rootFD, to))
	})
}

// openParent opens the root of the mount that holds the point.
func (t *mountTarget) openParent() (parentMount, error) {
	mounts, err := mountns.Table(0)
	if err != nil {
		return parentMount{}, err
	}
	own, ok := mounts.ByID(t.id.MountInfoID)
	mount, okParent := mounts.ByID(own.Parent)
	root, _ := mountinfo.Deleted(own.Root)
	below := strings.TrimPrefix(own.Point, strings.TrimSuffix(mount.Point, "/"))
	showsOwnPoint := own.Major == mount.Major && own.Minor == mount.Minor && path.Join(mount.Root, below) == root // the directory that it is mounted on
	switch {
	case !ok || !okParent:
		return parentMount{}, ErrNotMounted
	case mount.Point == own.Point:
		return parentMount{}, errStacked
	case mount.Unbindable:
		return parentMount{}, fmt.Errorf("the mount at %q is unbindable: %w", mount.Point, errors.ErrUnsupported)
	case mount.Shared != 0 && (own.Shared != 0 || own.Master != 0) && showsOwnPoint:
		return parentMount{}, fmt.Errorf("what is mounted there spreads onto the mount itself: %w", sys.EINVAL)
	}
	p := parentMount{Mount: mount, child: t}
	if p.rootFD, err = mountns.Lookup(0, mount.Point); err != nil {
		return parentMount{}, err
	}
	if err = errors.Join(expectOnMount(p.rootFD, mount.ID), expectOnMount(t.dir, mount.ID)); err != nil {
		p.rootFD.Close()
		return parentMount{}, err
	}
	return p, nil
}

// expectOnMount makes sure which mount an open file lies on.
func expectOnMount(fd *sys.FD, number int) error {
	found, err := fd.FDMountID()
	if err == nil && found != number {
		err = fmt.Errorf("the mount that holds it is covered: %w", errors.ErrUnsupported)
	}
	return err
}

// attachTree attaches the tree at the point in the leader: a copy of the directory
// that holds the point, whose mounts spread to the parent. The thread is in a copy
// of its namespace; home takes it back for a moment.
func (p parentMount) attachTree(tree, leader *sys.FD, home func(func() error) error) error {
	number, err := leader.FDMountID()
	if err != nil {
		return err
	}
	at, err := mountns.LookupIn(leader, p.child.id.Point)
	if err != nil {
		return err
	}
	defer at.Close()
	// Another process may have mounted at the point meanwhile, which has spread to the leader: the tree would spread to that
	// mount, and cover it.
	if found, err := at.FDMountID(); err != nil || found != number {
		return cmp.Or(err, ErrChanged)
	}
	between("found")
	if p.treeShares { // a tree that spreads to a slave shares if the slave does
		err = p.setPropagation(home, Shared, "MS_SHARED")
		between("sharing")
	}
	if err == nil {
		err = p.child.logCall("move_mount", "of the tree, spreading from a copy of the directory", sys.Attach(tree, at, false))
	}
	if err == nil {
		// The tree is attached to the leader itself, unless another process has made a mount at the point after the lookup: that
		// spreads to the leader while the parent is its peer.
		mounts, errTable := mountns.Table(0)
		own, errNumber := tree.FDMountID()
		if err = cmp.Or(errTable, errNumber); err == nil {
			if attached, ok := mounts.ByID(own); !ok || attached.Parent != number {
				err = ErrChanged
			}
		}
		if err != nil {
			err = errors.Join(err, p.child.logCall("umount2", "MNT_DETACH of the tree again", sys.DetachMount(tree)))
		}
	}
	if p.treeShares {
		err = errors.Join(err, p.setPropagation(home, Slave, "MS_SLAVE"))
	}
	if err != nil {
		return err
	}
	between("attached")
	// Nothing leads any more, even if another process keeps this namespace.
	return errors.Join(sys.SetMountPropagation(tree, Private), sys.SetMountPropagation(leader, Private))
}

// attachLeader returns the leader, attached at the root of the copied namespace. The caller closes it. A parent that
// does not share becomes its slave only then: before 6.15 no mount spreads by way of a mount that is attached nowhere,
// and new mounts of the parent's own master would not arrive.
func (p parentMount) attachLeader(home func(func() error) error) (leader *sys.FD, err error) {
	if err := sys.SetPropagation("/", Private, false); err != nil {
		return nil, err
	}
	if p.Shared == 0 {
		if err := p.setPropagation(home, Shared, "MS_SHARED"); err != nil {
			return nil, err
		}
		between("shared")
	}
	err = home(func() (err error) {
		leader, err = sys.CloneTree(p.child.dir)
		return err
	})
	if err == nil {
		between("cloned")
		err = sys.AttachAtRoot(leader)
	}
	if err == nil {
		between("copied")
	}
	if p.Shared == 0 { // its master is the leader, or else the master that it had before
		err = errors.Join(err, p.setPropagation(home, Slave, "MS_SLAVE"))
	}
	if err != nil {
		leader.Close()
		return nil, err
	}
	between("led")
	return leader, nil
}

// findInterrupted finds a tree that an attempt, cut short, has put beneath the mount by propagation: it has the content
// of our tree.
func (r *replaceOp) findInterrupted() (ok bool, err error) {
	if !r.attachesByPropagation() {
		return false, nil
	}
	below, err := r.mountSource.mountBeneath(r.id)
	if errors.Is(err, ErrNotMounted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = whileAttached(r.tree, func(tree State) error {
		ok = tree.Attr == below.Attr && sameContent(tree.ID, below.ID)
		return nil
	})
	if ok {
		r.attachment.state, r.id.Parent = below, below.MountInfoID
	}
	return ok, err
}
