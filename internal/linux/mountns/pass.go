// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"slices"
	"sync"

	"kubediag.org/kubediag/internal/linux/mountinfo"
)

// Pass is one look at the mounts of the machine that several searches share. The kernel walks down a stack of mounts
// for each mount of it that it lists, so the mounts of each namespace are listed once. The text of a mount is read only
// if a search wants it. A nil Pass shares nothing: each search looks by itself.
type Pass struct{ shared scanner }

// NewPass has read nothing yet. The mounts of host are those of the table, which was read already; without a table,
// they are listed like all others.
func NewPass(host Namespace, table *mountinfo.Table) *Pass {
	s := newScanner(standardLimits)
	switch backend := s.backend.(type) {
	case kernelScan:
		backend.kept = &keptBriefs{host: host, table: table}
		s.backend = backend
	case procScan:
		backend.kept = &keptTables{}
		s.backend = backend
	}
	return &Pass{s}
}

func (p *Pass) scanner() scanner {
	if p == nil {
		return newScanner(standardLimits)
	}
	return p.shared
}

// MatchingMounts is every mount, in every namespace, that is wanted. How much room they
// take is bounded, for each namespace and in all: Survey.Skipped says how many
// mounts were left out. wanted learns neither the parent of a mount, nor whether it is an overlay: all else of a brief never changes, and is remembered from pass to
// pass.
func (p *Pass) MatchingMounts(wanted func(*MountBrief) bool) ([]Mount, Survey, error) {
	s := p.scanner()
	if k, ok := s.backend.(kernelScan); ok && k.kept == nil {
		k.systems = &ofAll
		s.backend = k
	}
	return s.matchingMounts(wanted)
}

// EachMount calls found with every mount, in every namespace, that is wanted. The mount
// is not kept, so that there may be any number.
func (p *Pass) EachMount(wanted func(*MountBrief) bool, found func(*Mount)) (Survey, error) {
	return p.scanner().backend.scan(wanted, found)
}

// FileSystems is every file system that is mounted in any namespace, in the
// order of their device numbers.
func (p *Pass) FileSystems() ([]FileSystem, Survey, error) {
	return p.scanner().fileSystems(func(*MountBrief) bool { return true })
}

// FileSystemsOutside is FileSystems without those that host has mounted: a node has thousands of them. seen is whether host has any.
func (p *Pass) FileSystemsOutside(host Namespace) (found []FileSystem, seen bool, survey Survey, err error) {
	inHost := map[uint64]bool{} // by device
	found, survey, err = p.scanner().fileSystems(func(b *MountBrief) bool {
		number := deviceNumber(b.Major, b.Minor)
		if b.Namespace.isOrIsReadBy(host) {
			inHost[number] = true
		}
		return !inHost[number]
	})
	found = slices.DeleteFunc(found, func(fs FileSystem) bool { // host may come after others
		return inHost[deviceNumber(fs.Mount.Major, fs.Mount.Minor)]
	})
	return found, len(inHost) > 0, survey, err
}

// isOrIsReadBy reports whether n is other. One whose namespace could not be read goes by its process.
func (n Namespace) isOrIsReadBy(other Namespace) bool {
	return n.Same(other) || n.Inode == 0 && n.PID != 0 && n.PID == other.PID
}

// Overlays is FileSystems of overlays alone. The kernel describes no other mount for it.
func (p *Pass) Overlays() ([]FileSystem, Survey, error) {
	return p.scanner().fileSystems(func(b *MountBrief) bool { return b.Overlay })
}

// Holders is the function Holders with the mounts of this look.
func (p *Pass) Holders(namespaces []Namespace) (map[uint64][]Holder, Survey, error) {
	return p.scanner().holders(namespaces)
}

// keptBriefs are the mounts that a kernelScan has listed, for all who share it.
type keptBriefs struct {
	host  Namespace
	table *mountinfo.Table // of host; nil: it is listed, too

	mu         sync.Mutex
	listed     bool
	survey     Survey
	namespaces []keptNamespace
}

type keptNamespace struct {
	namespace Namespace
	mounts    []keptMount
}

// keptMount is a MountBrief without its namespace, which takes most of the room: there may be a million of them.
type keptMount struct {
	unique       uint64
	major, minor uint32
	parent       int32
	mayHang      bool
	overlay      bool
}

// visitAll calls visit with every mount. The first call lists the mounts that are not known.
func (k *keptBriefs) visitAll(list func(visit func(*MountBrief) error) (Survey, error), visit func(*MountBrief) error) (Survey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.listed {
		k.namespaces = nil
		survey, err := list(k.add)
		if err != nil {
			return survey, err
		}
		k.survey, k.listed = survey, true
	}
	survey := k.survey
	survey.Skipped = slices.Clone(survey.Skipped)
	var brief MountBrief // one for all: it is valid for one call
	if k.table != nil {
		survey.Namespaces, survey.Mounts = survey.Namespaces+1, survey.Mounts+len(k.table.Mounts())
		all := k.table.Mounts()
		for i := range all {
			m := &all[i]
			brief = MountBrief{
				Namespace: Namespace{Inode: k.host.Inode, ID: k.host.ID}, Major: m.Major, Minor: m.Minor, Parent: m.Parent,
				MayHang: MayHang(m.FSType), Overlay: m.FSType == overlayType, known: m,
			}
			if err := visit(&brief); err != nil {
				return survey, err
			}
		}
	}
	for _, of := range k.namespaces {
		for _, m := range of.mounts {
			brief = MountBrief{
				Namespace: of.namespace, Major: m.major, Minor: m.minor, Parent: int(m.parent), MayHang: m.mayHang, Overlay: m.overlay, unique: m.unique,
			}
			if err := visit(&brief); err != nil {
				return survey, err
			}
		}
	}
	return survey, nil
}

func (k *keptBriefs) add(b *MountBrief) error {
	last := len(k.namespaces) - 1
	if last < 0 || k.namespaces[last].namespace != b.Namespace { // one comes after the other
		k.namespaces = append(k.namespaces, keptNamespace{namespace: b.Namespace})
		last++
	}
	k.namespaces[last].mounts = append(k.namespaces[last].mounts, keptMount{b.unique, b.Major, b.Minor, int32(b.Parent), b.MayHang, b.Overlay})
	return nil
}

// maxKeptText bounds the texts that are kept, in bytes. If there are more, they are read again for each search.
const maxKeptText = 32 << 20

// keptTables are the mount tables that a procScan has read, for all who share it.
type keptTables struct {
	mu      sync.Mutex
	read    bool
	survey  Survey
	tables  []keptTable
	bytes   int
	tooLong bool
}

type keptTable struct {
	namespace Namespace
	text      []byte
}

// readAll calls look with every table. The first call reads them.
func (k *keptTables) readAll(read func(tableReader) (Survey, error), look tableReader) (Survey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.tooLong:
		return read(look)
	case !k.read:
		k.tables, k.bytes = nil, 0
		survey, err := read(func(ns Namespace, text []byte) error {
			if k.bytes += len(text); k.bytes > maxKeptText {
				k.tables, k.tooLong = nil, true
			}
			if !k.tooLong {
				k.tables = append(k.tables, keptTable{ns, bytes.Clone(text)})
			}
			return look(ns, text)
		})
		k.survey, k.read = survey, err == nil && !k.tooLong
		return survey, err
	}
	survey := k.survey
	survey.Skipped, survey.DeniedPIDs = slices.Clone(survey.Skipped), slices.Clone(survey.DeniedPIDs)
	for _, t := range k.tables {
		if look(t.namespace, t.text) != nil {
			survey.Partial++
		}
	}
	return survey, nil
}
