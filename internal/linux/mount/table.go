// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// tableSource asks the text of mountinfo, which every kernel has.
type tableSource struct {
	known func() (*mountinfo.Table, error) // nil: it is read for each question
}

func readOwnTable() (*mountinfo.Table, error) { return mountns.Table(0) }

func (t tableSource) identify(fd *sys.FD, point string) (State, error) {
	// The open descriptor keeps the number from being used again.
	table := t.known
	if table == nil {
		table = readOwnTable
	}
	mounts, err := table()
	if err != nil {
		return State{}, err
	}
	stat, err := fd.Stat(sys.StatType | sys.StatNlink | sys.StatIno | sys.StatChanged)
	if err != nil {
		return State{}, err
	}
	number, err := fd.FDMountID()
	if err != nil {
		return State{}, err
	}
	m, ok := mounts.ByID(number)
	if !ok || m.Point != point {
		return State{}, ErrNotMounted
	}
	s := stateOf(m)
	s.ReadOnly = s.Attr.Has(sys.AttrReadOnly)
	s.setFile(stat)
	return s, nil
}

func idOfEntry(m mountinfo.Mount) ID { return IDOf(mountns.Mount{Mount: m}) }

func (t tableSource) exists(id ID) (bool, error) {
	// Before 5.8 a reading may miss a line while others mount and unmount, so
	// only two readings together prove that a mount is gone.
	for range 2 {
		mounts, err := mountns.Table(0)
		if err != nil {
			return false, err
		}
		if m, ok := mounts.ByID(id.MountInfoID); ok && id.Same(idOfEntry(m)) {
			return true, nil
		}
	}
	return false, nil
}

func (t tableSource) hasNoChildren(id ID) (bool, error) {
	mounts, err := mountns.Table(0)
	if err != nil {
		return false, err
	}
	m, ok := mounts.ByID(id.MountInfoID)
	return ok && id.Same(idOfEntry(m)) && len(mounts.Children(m.ID)) == 0, nil
}

func (t tableSource) mountBeneath(id ID) (State, error) {
	mounts, err := mountns.Table(0)
	if err != nil {
		return State{}, err
	}
	upper, ok := mounts.ByID(id.MountInfoID)
	id.Parent = upper.Parent
	if !ok || !id.Same(idOfEntry(upper)) {
		return State{}, ErrNotMounted
	}
	m, ok := mounts.ByID(upper.Parent)
	if !ok || m.Point != id.Point {
		return State{}, ErrNotMounted
	}
	return stateOf(m), nil
}

// stateOf is the State in a line of mountinfo.
func stateOf(m mountinfo.Mount) State {
	return State{
		ID:     idOfEntry(m),
		FSType: m.FSType, Source: m.Source,
		Attr: sys.ParseMountAttr(m.Options), Shared: m.Shared, Master: m.Master,
	}
}
