// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// mountSource is where knowledge about mounts comes from: the kernel's own calls, or
// the text of mountinfo.
type mountSource interface {
	// identify finds the mount whose root the open file is.
	identify(fd *sys.FD, point string) (State, error)
	// exists reports whether that mount is still in the table.
	exists(id ID) (bool, error)
	// hasNoChildren reports whether that mount is still where it was, with no mount
	// on it or below. It leaves no trace on the mount, not even a use of it.
	hasNoChildren(id ID) (bool, error)
	// mountBeneath finds the mount on which that mount lies at the same place: its ID, its attributes, and how it
	// shares. id may name another parent. ErrNotMounted: the place has no mount beneath.
	mountBeneath(id ID) (State, error)
}

// chooseMountSource tests the features of the kernel.
func chooseMountSource() mountSource {
	if forcedMountSource != nil {
		return forcedMountSource
	}
	if sys.HasStatmount.Probe() != nil {
		return tableSource{}
	}
	return kernelSource{}
}

// forcedMountSource is set by tests alone, to have one source serve for all.
var forcedMountSource mountSource

// kernelSource asks with statmount and listmount (6.8).
type kernelSource struct{}

func (kernelSource) identify(fd *sys.FD, point string) (State, error) {
	stat, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno | sys.StatChanged | sys.StatUniqueID)
	if err != nil {
		return State{}, err
	}
	if !stat.MountRoot {
		return State{}, ErrNotMounted
	}
	var m sys.MountStat
	err = m.Load(sys.MountRef{Mount: stat.MountID}, sys.StatmountSuper|sys.StatmountBasic|sys.StatmountRoot|
		sys.StatmountType|sys.StatmountSubtype|sys.StatmountSource)
	if errors.Is(err, sys.ENOENT) {
		return State{}, ErrNotMounted
	}
	if err != nil {
		return State{}, err
	}
	return stateFromStat(stat, &m, point), nil
}

func stateFromStat(st sys.Stat, m *sys.MountStat, point string) State {
	s := State{
		ID:     ID{UniqueID: m.ID(), MountInfoID: m.ReusedID(), Parent: m.ReusedParent(), Root: string(m.Root()), Point: point},
		FSType: m.FSType(), Source: string(m.Source()),
		ReadOnly: m.Attr().Has(sys.AttrReadOnly), Attr: m.Attr(), Shared: m.PeerGroup(), Master: m.Master(),
	}
	s.Major, s.Minor = m.Device()
	s.setFile(st)
	return s
}

// setFile adds the facts of the root's own inode.
func (s *State) setFile(st sys.Stat) {
	_, s.Deleted = mountinfo.Deleted(s.Root)
	s.Nlink, s.Inode, s.Dir = st.Nlink, st.Ino, st.IsDir()
	s.Changed = st.Changed
	s.Gone = st.Nlink == 0
}

func (kernelSource) exists(id ID) (bool, error) {
	if id.UniqueID == 0 {
		return tableSource{}.exists(id)
	}
	var m sys.MountStat
	err := m.Load(sys.MountRef{Mount: id.UniqueID}, sys.StatmountSuper)
	if errors.Is(err, sys.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func (kernelSource) hasNoChildren(id ID) (bool, error) {
	var stat sys.MountStat
	below := 0
	err := stat.Load(sys.MountRef{Mount: id.UniqueID}, sys.StatmountBasic|sys.StatmountPoint)
	if err == nil {
		below, err = sys.Listmount(sys.MountRef{Mount: id.UniqueID}, 0, make([]uint64, 1))
	}
	if errors.Is(err, sys.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return below == 0 && stat.ReusedParent() == id.Parent && string(stat.Point()) == id.Point, nil
}

func (kernelSource) mountBeneath(id ID) (State, error) {
	var stat sys.MountStat
	if err := stat.Load(sys.MountRef{Mount: id.UniqueID}, sys.StatmountBasic); err != nil {
		return State{}, err
	}
	err := stat.Load(sys.MountRef{Mount: stat.Parent()}, sys.StatmountSuper|sys.StatmountBasic|sys.StatmountRoot|sys.StatmountPoint)
	// The root of a namespace is mounted on a parent that is not in this namespace.
	if errors.Is(err, sys.ENOENT) || err == nil && string(stat.Point()) != id.Point {
		return State{}, ErrNotMounted
	}
	if err != nil {
		return State{}, err
	}
	return stateFromStat(sys.Stat{}, &stat, id.Point), nil
}

// Beneath finds the mount on which that mount lies at the same place, in the calling thread's namespace: its ID, its attributes, and how
// it shares. ErrNotMounted: the place has no mount beneath.
func Beneath(id ID) (State, error) { return chooseMountSource().mountBeneath(id) }
