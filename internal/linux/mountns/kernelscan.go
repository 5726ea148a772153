// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"cmp"
	"slices"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// listMax is how many mounts listmount gives at once.
const listMax = 1_000_000

// kernelScan goes through the machine by the kernel's own calls.
type kernelScan struct {
	spaces map[uint64]*space // by ID
	order  []*space          // those of this pass, the ones with few mounts first
	pass   int               // counts the passes
	stat   sys.MountStat
	ids    []uint64 // what listmount writes to
	kinds  kinds
	limits limits
}

// space is a mount namespace and what is known of its mounts.
type space struct {
	ns     Namespace
	pass   int
	ids    []uint64 // unique IDs, ascending
	supers []super  // of the same length
}

// super is the file system of a mount, which does not change: the major number of
// its device, of at most 12 bits, the minor number, and two bits of our own. It is
// small, as any user may make millions of mounts.
type super uint64

const (
	superRead super = 1 << 63 // the others are valid
	superHang super = 1 << 62 // it may hang, see MayHang
)

func newSuper(major, minor uint32, mayHang bool) super {
	s := superRead | super(deviceNumber(major, minor))
	if mayHang {
		s |= superHang
	}
	return s
}

func (s super) device() (major, minor uint32) {
	s &^= superRead | superHang
	return uint32(s >> 32), uint32(s)
}

func newKernelScan(l limits) *kernelScan {
	return &kernelScan{spaces: map[uint64]*space{}, limits: l}
}

func deviceNumber(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

// list brings the list of namespaces and of their mounts up to date. It begins with
// the namespaces that have few mounts: one with many is passed over when the bound
// is met.
func (k *kernelScan) list() (Survey, error) {
	k.pass++
	survey := Survey{Backend: "kernel"}
	found, err := k.walk(&survey)
	if err != nil {
		return survey, err
	}
	left, unlisted := k.limits.mounts, 0
	k.order = k.order[:0]
	for _, f := range found {
		if f.mounts > left {
			unlisted++
			continue
		}
		if err = k.listSpace(f.space, f.mounts); procfs.Ended(err) {
			continue
		}
		if err != nil {
			return survey, err
		}
		k.order = append(k.order, f.space)
		left -= len(f.ids)
		survey.Namespaces++
		survey.Mounts += len(f.ids)
	}
	for id, s := range k.spaces {
		if s.pass != k.pass {
			delete(k.spaces, id)
		}
	}
	if unlisted > 0 {
		survey.skip("the mounts of %d mount namespaces with the most: at most %d mounts are looked at", unlisted, k.limits.mounts)
	}
	return survey, nil
}

// counted is a namespace and how many mounts the kernel says that it has.
type counted struct {
	*space
	mounts int
}

// walk lists the namespaces, those with few mounts first.
func (k *kernelScan) walk(survey *Survey) (found []counted, err error) {
	more := false
	err = walk(func(fd *sys.FD, info sys.NamespaceInfo) error {
		if more = len(found) >= k.limits.namespaces; more {
			return errFound
		}
		s, err := k.space(fd, info)
		if err == nil {
			found = append(found, counted{s, int(info.Mounts)})
		}
		return err
	})
	if more {
		survey.skip("mount namespaces beyond the first %d", k.limits.namespaces)
		err = nil
	}
	slices.SortStableFunc(found, func(a, b counted) int { return cmp.Compare(a.mounts, b.mounts) })
	return found, err
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
	s.pass = k.pass
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
	supers := make([]super, len(ids))
	old := 0
	for i, id := range ids {
		for old < len(s.ids) && s.ids[old] < id {
			old++
		}
		if old < len(s.ids) && s.ids[old] == id {
			supers[i] = s.supers[old]
		}
	}
	s.ids, s.supers = slices.Clone(ids), supers
}

func (k *kernelScan) namespaces() ([]Namespace, Survey, error) {
	survey := Survey{Backend: "kernel"}
	all, err := k.walk(&survey)
	found := make([]Namespace, len(all))
	for i, c := range all {
		found[i] = c.ns
		survey.Mounts += c.mounts
	}
	survey.Namespaces = len(found)
	return found, survey, err
}

// each calls look for every mount that is known, as long as look does not fail.
// Mounts that are gone by now are passed over.
func (k *kernelScan) each(look func(s *space, i int, ref sys.MountRef) error) error {
	for _, s := range k.order {
		for i := range s.ids {
			err := look(s, i, sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]})
			if err != nil && !procfs.Ended(err) {
				return err
			}
		}
	}
	return nil
}

func (k *kernelScan) scan(wanted func(*Brief) bool, found func(*Mount)) (Survey, error) {
	survey, err := k.readSupers()
	if err != nil {
		return survey, err
	}
	var at sys.MountRef
	b := Brief{numbers: func() (id, parent int) {
		if k.stat.Load(at, sys.StatmountBasic) != nil {
			return 0, 0
		}
		return k.stat.ReusedID(), k.stat.ReusedParent()
	}}
	err = k.each(func(s *space, i int, ref sys.MountRef) error {
		if s.supers[i]&superRead == 0 {
			return nil
		}
		at, b.Namespace, b.MayHang = ref, s.ns, s.supers[i]&superHang != 0
		if b.Major, b.Minor = s.supers[i].device(); !wanted(&b) {
			return nil
		}
		mount, err := loadMount(&k.stat, s.ns, ref.Mount)
		if err == nil {
			found(&mount)
		}
		return err
	})
	return survey, err
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
