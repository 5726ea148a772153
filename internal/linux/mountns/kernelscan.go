// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"cmp"
	"slices"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// maxIDsPerCall is how many mounts listmount gives at once.
const maxIDsPerCall = 1_000_000

// kernelScan goes through the machine by the kernel's own calls.
type kernelScan struct {
	byID         map[uint64]*scannedNamespace // by ID
	inPassOrder  []*scannedNamespace          // those of this pass, the ones with few mounts first
	passCount    int                          // counts the passes
	stat         sys.MountStat
	ids          []uint64 // what listmount writes to
	magicNumbers magicCache
	limits       scanLimits
}

// scannedNamespace is a mount namespace and what is known of its mounts.
type scannedNamespace struct {
	ns          Namespace
	seenInPass  int
	ids         []uint64     // unique IDs, ascending
	superBlocks []superBlock // of the same length
}

// superBlock is the file system of a mount, which does not change: the major number of
// its device, of at most 12 bits, the minor number, and two bits of our own. It is
// small, as any user may make millions of mounts.
type superBlock uint64

const (
	superBlockRead    superBlock = 1 << 63 // the others are valid
	superBlockMayHang superBlock = 1 << 62 // it may hang, see MayHang
)

func newSuperBlock(major, minor uint32, mayHang bool) superBlock {
	s := superBlockRead | superBlock(deviceNumber(major, minor))
	if mayHang {
		s |= superBlockMayHang
	}
	return s
}

func (s superBlock) device() (major, minor uint32) {
	s &^= superBlockRead | superBlockMayHang
	return uint32(s >> 32), uint32(s)
}

func newKernelScan(l scanLimits) *kernelScan {
	return &kernelScan{byID: map[uint64]*scannedNamespace{}, limits: l}
}

func deviceNumber(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

// listNamespaces brings the list of namespaces and of their mounts up to date. It begins with
// the namespaces that have few mounts: one with many is passed over when the bound
// is met.
func (k *kernelScan) listNamespaces() (Survey, error) {
	k.passCount++
	survey := Survey{Backend: "kernel"}
	found, err := k.walkNamespaces(&survey)
	if err != nil {
		return survey, err
	}
	left, unlisted := k.limits.mounts, 0
	k.inPassOrder = k.inPassOrder[:0]
	for _, f := range found {
		if f.mounts > left {
			unlisted++
			continue
		}
		if err = k.listMountsOf(f.scannedNamespace, f.mounts); procfs.Ended(err) {
			continue
		}
		if err != nil {
			return survey, err
		}
		k.inPassOrder = append(k.inPassOrder, f.scannedNamespace)
		left -= len(f.ids)
		survey.Namespaces++
		survey.Mounts += len(f.ids)
	}
	for id, s := range k.byID {
		if s.seenInPass != k.passCount {
			delete(k.byID, id)
		}
	}
	if unlisted > 0 {
		survey.addSkip("the mounts of %d mount namespaces with the most: at most %d mounts are looked at", unlisted, k.limits.mounts)
	}
	return survey, nil
}

// countedNamespace is a namespace and how many mounts the kernel says that it has.
type countedNamespace struct {
	*scannedNamespace
	mounts int
}

// walkNamespaces lists the namespaces, those with few mounts first.
func (k *kernelScan) walkNamespaces(survey *Survey) (found []countedNamespace, err error) {
	more := false
	err = walkKernelNamespaces(func(fd sys.NamespaceFD, info sys.NamespaceInfo) error {
		if more = len(found) >= k.limits.namespaces; more {
			return errFound
		}
		s, err := k.namespaceOf(fd, info)
		if err == nil {
			found = append(found, countedNamespace{s, int(info.Mounts)})
		}
		return err
	})
	if more {
		survey.addSkip("mount namespaces beyond the first %d", k.limits.namespaces)
		err = nil
	}
	slices.SortStableFunc(found, func(a, b countedNamespace) int { return cmp.Compare(a.mounts, b.mounts) })
	return found, err
}

func (k *kernelScan) namespaceOf(fd sys.NamespaceFD, info sys.NamespaceInfo) (*scannedNamespace, error) {
	namespace := k.byID[info.ID]
	if namespace == nil {
		st, err := fd.Stat(sys.StatIno)
		if err != nil {
			return nil, err
		}
		namespace = &scannedNamespace{ns: Namespace{Inode: st.Ino, ID: info.ID}}
		k.byID[info.ID] = namespace
	}
	return namespace, nil
}

// listMountsOf reads which mounts a namespace has; those that it had before keep
// what is known of them.
func (k *kernelScan) listMountsOf(namespace *scannedNamespace, expected int) error {
	ids, err := listMounts(slices.Grow(k.ids[:0], expected+64), namespace.ns)
	if err != nil {
		return err
	}
	k.ids = ids
	namespace.seenInPass = k.passCount
	namespace.setMounts(k.ids)
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
		free = free[:min(len(free), maxIDsPerCall)]
		n, err := sys.Listmount(sys.MountRef{Namespace: ns.ID, Mount: sys.RootOf}, after, free)
		if err != nil {
			return nil, err
		}
		if ids = ids[:len(ids)+n]; n < len(free) {
			return ids, nil
		}
	}
}

// setMounts makes ids, which are ascending, the namespace's mounts.
func (s *scannedNamespace) setMounts(ids []uint64) {
	if slices.Equal(s.ids, ids) {
		return
	}
	supers := make([]superBlock, len(ids))
	old := 0
	for i, id := range ids {
		for old < len(s.ids) && s.ids[old] < id {
			old++
		}
		if old < len(s.ids) && s.ids[old] == id {
			supers[i] = s.superBlocks[old]
		}
	}
	s.ids, s.superBlocks = slices.Clone(ids), supers
}

func (k *kernelScan) namespaces() ([]Namespace, Survey, error) {
	survey := Survey{Backend: "kernel"}
	all, err := k.walkNamespaces(&survey)
	found := make([]Namespace, len(all))
	for i, c := range all {
		found[i] = c.ns
		survey.Mounts += c.mounts
	}
	survey.Namespaces = len(found)
	return found, survey, err
}

// forEachMount calls look for every mount that is known, as long as look does not fail.
// Mounts that are gone by now are passed over.
func (k *kernelScan) forEachMount(look func(s *scannedNamespace, i int, ref sys.MountRef) error) error {
	for _, s := range k.inPassOrder {
		for i := range s.ids {
			err := look(s, i, sys.MountRef{Namespace: s.ns.ID, Mount: s.ids[i]})
			if err != nil && !procfs.Ended(err) {
				return err
			}
		}
	}
	return nil
}

func (k *kernelScan) scan(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error) {
	survey, err := k.readSuperBlocks()
	if err != nil {
		return survey, err
	}
	var at sys.MountRef
	brief := MountBrief{numbers: func() (id, parent int) {
		if k.stat.Load(at, sys.StatmountBasic) != nil {
			return 0, 0
		}
		return k.stat.ReusedID(), k.stat.ReusedParent()
	}}
	err = k.forEachMount(func(namespace *scannedNamespace, i int, ref sys.MountRef) error {
		if namespace.superBlocks[i]&superBlockRead == 0 {
			return nil
		}
		at, brief.Namespace, brief.MayHang = ref, namespace.ns, namespace.superBlocks[i]&superBlockMayHang != 0
		if brief.Major, brief.Minor = namespace.superBlocks[i].device(); !wanted(&brief) {
			return nil
		}
		mount, err := loadMount(&k.stat, namespace.ns, ref.Mount)
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
