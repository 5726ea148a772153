// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"sync"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// kernelScan goes through the machine by the kernel's own calls.
type kernelScan struct {
	limits scanLimits
	kept   *keptBriefs // nil: nothing is kept
	// systems are the file systems of mounts that are known, if no search asks for more of a mount that it does not want.
	systems *knownSystems
}

func deviceNumber(major, minor uint32) uint64 { return uint64(major)<<32 | uint64(minor) }

// countedNamespace is a namespace with the kernel's count of its mounts.
type countedNamespace struct {
	Namespace
	mounts  int
	foreign bool // a user namespace owns it that does not own ours
}

// compare orders the namespaces: those that come last are left out when a bound is met. Any user may make foreign ones, as many as there is
// room for. Those with few mounts come first among the same.
func (c countedNamespace) compare(other countedNamespace) int {
	foreign := func(c countedNamespace) int {
		if c.foreign {
			return 1
		}
		return 0
	}
	return cmp.Or(foreign(c)-foreign(other), cmp.Compare(c.mounts, other.mounts))
}

// listNamespaces lists the namespaces in that order.
func (k kernelScan) listNamespaces(survey *Survey) (found []countedNamespace, err error) {
	more, home := false, uint64(0)
	err = walkKernelNamespaces(func(fd sys.NamespaceFD, info sys.NamespaceInfo) error {
		if more = len(found) >= k.limits.namespaces; more {
			return errFound
		}
		st, err := fd.Stat(sys.StatIno)
		if err != nil {
			return err
		}
		owner, err := fd.OwnerUserNamespace()
		if home == 0 { // the walk begins with our own
			home = owner
		}
		found = append(found, countedNamespace{Namespace{Inode: st.Ino, ID: info.ID}, int(info.Mounts), err != nil || owner != home})
		return nil //nolint:nilerr // a namespace whose owner is not known counts as a stranger's
	})
	if more {
		survey.addSkip("mount namespaces beyond the first %d", k.limits.namespaces)
		err = nil
	}
	slices.SortStableFunc(found, countedNamespace.compare)
	return found, err
}

func (k kernelScan) namespaces() ([]Namespace, Survey, error) {
	survey := Survey{Backend: "kernel"}
	all, err := k.listNamespaces(&survey)
	found := make([]Namespace, len(all))
	for i, c := range all {
		found[i] = c.Namespace
		survey.Mounts += c.mounts
	}
	survey.Namespaces = len(found)
	return found, survey, err
}

func (k kernelScan) scan(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error) {
	var stat sys.MountStat
	visit := func(b *MountBrief) error {
		if !wanted(b) {
			return nil
		}
		if b.known != nil {
			found(&Mount{Mount: *b.known, Namespace: b.Namespace})
			return nil
		}
		switch mount, err := loadMount(&stat, b.Namespace, b.unique); {
		case err == nil:
			found(&mount)
		case !procfs.Ended(err):
			return err
		}
		return nil
	}
	if k.kept == nil {
		return k.listMounts(visit)
	}
	return k.kept.visitAll(k.listMounts, visit)
}

// listMounts calls visit with every mount of every namespace that is not known.
func (k kernelScan) listMounts(visit func(*MountBrief) error) (Survey, error) {
	survey := Survey{Backend: "kernel"}
	all, err := k.listNamespaces(&survey)
	if err != nil {
		return survey, err
	}
	reader := mountReader{visit: visit, systems: k.systems}
	left, unlisted := k.limits.mounts, 0
	for _, c := range all {
		if k.kept != nil && k.kept.table != nil && k.kept.host.Same(c.Namespace) {
			continue // the mounts are known
		}
		if c.mounts > left {
			unlisted++
			continue
		}
		switch n, err := reader.readNamespace(c); {
		case procfs.Ended(err):
		case err != nil:
			return survey, err
		default:
			left -= n
			survey.Namespaces++
			survey.Mounts += n
		}
	}
	if unlisted > 0 {
		survey.addSkip("the mounts of %d mount namespaces with the most: at most %d mounts are looked at", unlisted, k.limits.mounts)
	}
	if err := reader.passWindow(); err != nil || k.systems == nil {
		return survey, err
	}
	reader.remember(0)
	k.systems.keep(all)
	return survey, nil
}

// The kernel takes a microsecond to describe a mount. Several threads ask about a window of mounts.
const (
	windowSize      = 4096
	mountsPerThread = 512
	maxThreads      = 4
)

// mountReader reads the mounts of one namespace after another.
type mountReader struct {
	visit   func(*MountBrief) error // is called with each, in their order
	ids     []uint64                // the buffer of listmount
	window  []MountBrief            // those to be read next
	readers [maxThreads]briefReader

	systems *knownSystems // nil: nothing is known
	// passed are the file systems of the mounts of one namespace that were passed on, and unknown is the number of those that were not known.
	passed  []systemOf
	unknown int
	of      uint64 // number of that namespace
}

// readNamespace reads the mounts of a namespace, and returns how many it has. The last of them wait for passWindow.
func (r *mountReader) readNamespace(c countedNamespace) (int, error) {
	noteReadOf(c.Namespace)
	ids, err := sys.ListAllMounts(slices.Grow(r.ids[:0], c.mounts+64), c.ID)
	if err != nil {
		return 0, err
	}
	r.ids = ids
	var known []systemOf
	if r.systems != nil {
		known = r.systems.get(c.ID)
	}
	for _, id := range ids {
		brief := MountBrief{Namespace: c.Namespace, unique: id}
		for len(known) > 0 && known[0].unique < id {
			known = known[1:]
		}
		if len(known) > 0 && known[0].unique == id {
			brief.Major, brief.Minor, brief.MayHang, brief.described = uint32(known[0].major), known[0].minor, known[0].mayHang, true
		}
		r.window = append(r.window, brief)
		if len(r.window) < windowSize {
			continue
		}
		if err := r.passWindow(); err != nil {
			return 0, err
		}
	}
	return len(ids), nil
}

// passWindow reads the mounts of the window, and passes them on in their order. Mounts that are gone by now are left
// out.
func (r *mountReader) passWindow() error {
	threads := min(1+len(r.window)/mountsPerThread, runtime.GOMAXPROCS(0), maxThreads)
	errs := make([]error, threads)
	var done sync.WaitGroup
	for i := range threads {
		part := r.window[i*len(r.window)/threads : (i+1)*len(r.window)/threads]
		done.Go(func() { errs[i] = r.readers[i].readBriefs(part) })
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i := range r.window {
		brief := &r.window[i]
		if brief.unique == 0 {
			continue
		}
		if r.systems != nil {
			// Its file system is remembered with those of its namespace, which come one after the other.
			if brief.Namespace.ID != r.of {
				r.remember(brief.Namespace.ID)
			}
			if !brief.described {
				r.unknown++
			}
			brief.Parent = 0 // it may change
			r.passed = append(r.passed, systemOf{brief.unique, uint16(brief.Major), brief.MayHang, brief.Minor})
		}
		if err := r.visit(brief); err != nil {
			return err
		}
	}
	r.window = r.window[:0]
	return nil
}

// remember remembers the file systems of a namespace, if there are others than before, and begins with the next one.
func (r *mountReader) remember(next uint64) {
	if r.unknown > 0 || len(r.passed) < len(r.systems.get(r.of))/2 {
		r.systems.put(r.of, slices.Clone(r.passed))
	}
	r.passed, r.unknown, r.of = r.passed[:0], 0, next
}

// An overlay has this type, and its magic number is this one (include/uapi/linux/magic.h).
const (
	overlayType  = "overlay"
	overlayMagic = 0x794c7630
)

// briefReader reads briefs in one thread.
type briefReader struct {
	stat sys.MountStat
	// mayHangByMagic has, by the magic numbers of file systems that were met, whether they may hang. A number comes
	// with the rest at no price. The name of the type doubles the price of the call, which is made once for each number.
	mayHangByMagic map[uint64]bool
}

// readBriefs reads the mounts with these unique IDs. It sets the ID of a mount that is gone to 0.
func (r *briefReader) readBriefs(briefs []MountBrief) error {
	for i := range briefs {
		brief := &briefs[i]
		if brief.described {
			continue
		}
		ref := sys.MountRef{Namespace: brief.Namespace.ID, Mount: brief.unique}
		err := r.stat.Load(ref, sys.StatmountSuper|sys.StatmountBasic)
		if err == nil {
			brief.Major, brief.Minor = r.stat.Device()
			brief.Parent, brief.Overlay = r.stat.ReusedParent(), r.stat.Magic() == overlayMagic
			brief.MayHang, err = r.mayHang(ref)
		}
		if procfs.Ended(err) {
			brief.unique, err = 0, nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayHang reports whether the file system of the mount that was read may hang.
func (r *briefReader) mayHang(ref sys.MountRef) (bool, error) {
	magic := r.stat.Magic()
	if hangs, known := r.mayHangByMagic[magic]; known {
		return hangs, nil
	}
	if err := r.stat.Load(ref, sys.StatmountType); err != nil {
		return false, err
	}
	hangs := MayHang(r.stat.FSType())
	if r.mayHangByMagic == nil {
		r.mayHangByMagic = map[uint64]bool{}
	}
	if magic != 0 { // which is no type's own
		r.mayHangByMagic[magic] = hangs
	}
	return hangs, nil
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
