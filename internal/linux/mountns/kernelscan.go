// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"slices"

	"kubediag.org/kubediag/internal/linux/sys"
)

// forgetAfter is after how many passes everything is read anew, should two
// mounts ever have been taken for one (see roots).
const forgetAfter = 64

// listMax is how many mounts listmount gives at once.
const listMax = 1_000_000

// kernelScan goes through the machine by the kernel's own calls.
type kernelScan struct {
	spaces map[uint64]*space // by ID
	roots  *roots
	stat   sys.MountStat
	ids    []uint64 // what listmount writes to
}

// space is a mount namespace and what is known of its mounts.
type space struct {
	ns     Namespace
	pass   int
	ids    []uint64 // unique IDs, ascending
	mounts []known  // of the same length
}

// known is what does not change about a mount, or is kept up to date.
type known struct {
	rooted
	device uint64
	onDisk bool // whether device has been read
}

func newKernelScan() *kernelScan {
	k := &kernelScan{spaces: map[uint64]*space{}}
	k.roots = newRoots(k.readRoot)
	return k
}

func deviceNumber(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

func (k *kernelScan) readRoot(ref sys.MountRef) (uint64, []byte, error) {
	if err := k.stat.Load(ref, sys.StatmountSuper|sys.StatmountRoot); err != nil {
		return 0, nil, err
	}
	return deviceNumber(k.stat.Device()), k.stat.Root(), nil
}

// list brings the list of namespaces and of their mounts up to date.
func (k *kernelScan) list() (Survey, error) {
	if k.roots.begin(); k.roots.pass%forgetAfter == 0 {
		k.spaces, k.roots.classes = map[uint64]*space{}, map[place]*class{}
	}
	survey := Survey{Backend: "kernel"}
	err := walk(func(fd *sys.FD, info sys.NamespaceInfo) error {
		s, err := k.space(fd, info)
		if err == nil {
			err = k.listSpace(s, int(info.Mounts))
		}
		if gone(err) {
			return nil
		}
		if err == nil {
			survey.Namespaces++
			survey.Mounts += len(s.ids)
		}
		return err
	})
	for id, s := range k.spaces {
		if s.pass != k.roots.pass {
			delete(k.spaces, id)
		}
	}
	return survey, err
}

func (k *kernelScan) space(fd *sys.FD, info sys.NamespaceInfo) (*space, error) {
	s := k.spaces[info.ID]
	if s == nil {
		st, err := fd.Stat(sys.StatIno)
		if err != nil {
			return nil, err
		}
		s = &space{ns: Namespace{Inode: st.Ino, ID: info.ID}}
		k.spaces[info.ID] = s
	}
	return s, nil
}

// listSpace reads which mounts a namespace has; those that it had before keep
// what is known of them.
func (k *kernelScan) listSpace(s *space, expected int) error {
	ids, err := listMounts(slices.Grow(k.ids[:0], expected+64), s.ns)
	if err != nil {
		return err
	}
	k.ids = ids
	s.pass = k.roots.pass
	s.update(k.ids)
	return nil
}

// listMounts reads the unique IDs of the mounts of a namespace, ascending, into
// ids[:0], which grows as needed.
func listMounts(ids []uint64, ns Namespace) ([]uint64, error) {
	ids = ids[:0]
	for {
		after := uint64(0)
		if len(ids) > 0 {
			after = ids[len(ids)-1]
		}
		ids = slices.Grow(ids, 64)
		free := ids[len(ids):cap(ids)]
		free = free[:min(len(free), listMax)]
		n, err := sys.Listmount(sys.MountRef{Namespace: ns.ID, Mount: sys.RootOf}, after, free)
		if err != nil {
			return nil, err
		}
		if ids = ids[:len(ids)+n]; n < len(free) {
			return ids, nil
		}
	}
}

// update makes ids, which are ascending, the namespace's mounts.
func (s *space) update(ids []uint64) {
	if slices.Equal(s.ids, ids) {
		return
	}
	mounts := make([]known, len(ids))
	old := 0
	for i, id := range ids {
		for old < len(s.ids) && s.ids[old] < id {
			old++
		}
		if old < len(s.ids) && s.ids[old] == id {
			mounts[i] = s.mounts[old]
		}
	}
	s.ids, s.mounts = slices.Clone(ids), mounts
}

func (k *kernelScan) namespaces() ([]Namespace, Survey, error) {
	survey, err := k.list()
	found := make([]Namespace, 0, len(k.spaces))
	for _, s := range k.spaces {
		found = append(found, s.ns)
	}
	return found, survey, err
}

// each calls look for every mount that is known, as long as look does not fail.
// Mounts that are gone by now are passed over.
func (k *kernelScan) each(look func(s *space, m *known, ref sys.MountRef) error) error {
	for _, s := range k.spaces {
		for i := range s.mounts {
			err := look(s, &s.mounts[i], sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]})
			if err != nil && !gone(err) {
				return err
			}
		}
	}
	return nil
}

func (k *kernelScan) deleted() ([]Mount, Survey, error) {
	survey, err := k.list()
	look := func(_ *space, m *known, ref sys.MountRef) error { return k.roots.look(&m.rooted, ref) }
	if err == nil {
		err = k.each(look)
	}
	if err == nil && k.roots.confirm() {
		err = k.each(look)
	}
	if err != nil {
		return nil, survey, err
	}
	found, err := k.describe(func(m *known) bool { return m.deleted })
	return found, survey, err
}

func (k *kernelScan) onDevices(wanted func(major, minor uint32) bool) ([]Mount, Survey, error) {
	survey, err := k.readDevices()
	if err != nil {
		return nil, survey, err
	}
	found, err := k.describe(func(m *known) bool {
		return m.onDisk && wanted(uint32(m.device>>32), uint32(m.device))
	})
	return found, survey, err
}

func (k *kernelScan) fileSystems() ([]FileSystem, Survey, error) {
	survey, err := k.readDevices()
	if err != nil {
		return nil, survey, err
	}
	at := map[uint64]int{} // device -> index in found
	var found []FileSystem
	err = k.each(func(s *space, m *known, ref sys.MountRef) error {
		i, known := at[m.device]
		switch {
		case !m.onDisk:
			return nil
		case known:
			found[i].seenIn(s.ns)
			return nil
		}
		mount, err := loadMount(&k.stat, s.ns, ref.Mount)
		if err == nil {
			at[m.device] = len(found)
			found = append(found, FileSystem{Mount: mount, Namespaces: []Namespace{s.ns}})
		}
		return err
	})
	return found, survey, err
}

// seenIn notes that the file system is mounted in ns. Namespaces come one after
// the other.
func (f *FileSystem) seenIn(ns Namespace) {
	if last := f.Namespaces[len(f.Namespaces)-1]; last != ns {
		f.Namespaces = append(f.Namespaces, ns)
	}
}

// describe reads everything about the mounts that are wanted.
func (k *kernelScan) describe(wanted func(*known) bool) ([]Mount, error) {
	var found []Mount
	err := k.each(func(s *space, m *known, ref sys.MountRef) error {
		if !wanted(m) {
			return nil
		}
		mount, err := loadMount(&k.stat, s.ns, ref.Mount)
		if err == nil {
			found = append(found, mount)
		}
		return err
	})
	return found, err
}

// loadMount reads everything about a mount. ENOENT: it is gone.
func loadMount(stat *sys.MountStat, ns Namespace, unique uint64) (Mount, error) {
	err := stat.Load(sys.MountRef{Namespace: ns.ID, Mount: unique}, sys.StatmountSuper|sys.StatmountBasic|
		sys.StatmountRoot|sys.StatmountPoint|sys.StatmountType|sys.StatmountSubtype|sys.StatmountSource)
	if err != nil {
		return Mount{}, err
	}
	m := Mount{Unique: stat.ID(), Namespace: ns}
	m.ID, m.Parent = stat.ReusedID(), stat.ReusedParent()
	m.Major, m.Minor = stat.Device()
	m.Root, m.Point = string(stat.Root()), string(stat.Point())
	m.Shared, m.Master = stat.PeerGroup(), stat.Master()
	m.FSType, m.Source = stat.FSType(), string(stat.Source())
	return m, nil
}
