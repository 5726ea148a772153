// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"sync"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// LocateAll looks up each of the mounts in the mount table of the calling thread's namespace, and calls then with the
// index of each, in their order. It looks up no path, so that it never waits. An ID with nothing but a Point means the
// mount that shows there. Any other ID means one mount, also if another one hides it. If it is gone, the result is the
// mount that shows at its Point. ErrNotMounted: no mount shows there. State lacks the facts of the root's own inode.
// known is the mount table of that namespace, if it was read a short time before; nil: it is read.
func LocateAll(known *mountinfo.Table, wanted []ID, then func(i int, st State, err error)) {
	l := batchLocator{readTable: sync.OnceValues(readOwnTable),
		readUniqueIDs: sync.OnceValues(mountns.UniqueIDs)}
	if known != nil {
		l.readTable = func() (*mountinfo.Table, error) { return known, nil }
	}
	for i, id := range wanted {
		st, err := l.locateMount(id)
		if err != nil {
			err = &Error{Op: "find", Target: id.Point, Err: err}
		}
		then(i, st, err)
	}
}

// batchLocator finds many mounts of one namespace.
type batchLocator struct {
	readTable     func() (*mountinfo.Table, error)
	readUniqueIDs func() (map[int]uint64, error)
	stat          sys.MountStat
}

func (l *batchLocator) locateMount(id ID) (State, error) {
	if id.UniqueID != 0 && sys.HasStatmount.Probe() == nil {
		st, err := l.loadMount(id.UniqueID)
		if err == nil && st.Point == id.Point || err != nil && !errors.Is(err, sys.ENOENT) {
			return st, err
		}
	}
	t, err := l.readTable()
	if err != nil {
		return State{}, err
	}
	m, ok := t.ByID(id.MountInfoID)
	if !ok || m.Point != id.Point {
		if m, ok = t.Top(id.Point); !ok {
			return State{}, ErrNotMounted
		}
	}
	st := stateOf(m)
	st.ReadOnly = st.Attr.Has(sys.AttrReadOnly)
	_, st.Deleted = mountinfo.Deleted(st.Root)
	if missing := sys.HasStatmount.Probe(); missing != nil {
		return st, nil //nolint:nilerr // then the kernel has no number that it never uses again
	}
	numbers, err := l.readUniqueIDs()
	if err != nil {
		return State{}, err
	}
	unique, ok := numbers[m.ID]
	if !ok {
		return State{}, ErrNotMounted // it went since the table was read
	}
	found, err := l.loadMount(unique)
	switch {
	case errors.Is(err, sys.ENOENT), err == nil && found.Point != m.Point:
		return State{}, ErrNotMounted
	case err != nil:
		return State{}, err
	}
	return found, nil
}

// loadMount asks the kernel about one mount.
func (l *batchLocator) loadMount(unique uint64) (State, error) {
	err := l.stat.Load(sys.MountRef{Mount: unique}, sys.StatmountSuper|sys.StatmountBasic|sys.StatmountRoot|sys.StatmountPoint|
		sys.StatmountType|sys.StatmountSubtype|sys.StatmountSource)
	if err != nil {
		return State{}, err
	}
	st := stateFromStat(sys.Stat{}, &l.stat, string(l.stat.Point()))
	st.Gone = false // which only the inode shows
	return st, nil
}
