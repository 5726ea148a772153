// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

// scanLimits bounds the time and the memory of a pass. A user who may make a user namespace may make a hundred thousand
// mounts in each of thousands of mount namespaces.
type scanLimits struct {
	// namespaces and mounts are how many are listed.
	namespaces, mounts int
	// headBytes is how much of a mount table is read at once, and allHeadBytes how much of all. A table that is longer
	// has to wait until all others have been read; at most tableBytes of it are read, and allTableBytes of all such
	// tables.
	headBytes, allHeadBytes, tableBytes, allTableBytes int
	// namespaceBytes bounds the described mounts of one namespace, some 8,000 with paths of ordinary length, and
	// totalBytes those of all.
	namespaceBytes, totalBytes int
}

// standardLimits is for a program that may take 256 MiB.
var standardLimits = scanLimits{
	namespaces: 65_536, mounts: 1_000_000,
	headBytes: 1 << 20, allHeadBytes: 512 << 20, tableBytes: 16 << 20, allTableBytes: 64 << 20,
	namespaceBytes: 4 << 20, totalBytes: 32 << 20,
}

// The sizes of a Mount and a Namespace without their texts, in bytes.
const (
	mountOverhead = 232
	namespaceSize = 72
)

func (m *Mount) memorySize() int {
	return mountOverhead + len(m.Root) + len(m.Point) + len(m.Options) + len(m.FSType) + len(m.Source) + len(m.SuperOptions)
}

// memoryBudget is the room that is left for described mounts.
type memoryBudget struct {
	scanLimits
	remaining          int
	usedByNamespace    map[Namespace]int // the room in use
	refusedByNamespace map[Namespace]int // how many had no room
}

func newMemoryBudget(l scanLimits) *memoryBudget {
	return &memoryBudget{scanLimits: l, remaining: l.totalBytes, usedByNamespace: map[Namespace]int{}, refusedByNamespace: map[Namespace]int{}}
}

// mayFit reports whether there may be room for one more mount of that namespace, and counts the mount if there is not.
func (r *memoryBudget) mayFit(ns Namespace) bool { return r.reserve(ns, 0) }

// reserve takes room, and counts the mounts without room.
func (r *memoryBudget) reserve(ns Namespace, size int) bool {
	if size+r.usedByNamespace[ns] > r.namespaceBytes || size > r.remaining || r.refusedByNamespace[ns] > 0 {
		r.refusedByNamespace[ns]++
		return false
	}
	if size > 0 {
		r.usedByNamespace[ns] += size
		r.remaining -= size
	}
	return true
}

// addSkipped adds the mounts without room to the gaps.
func (r *memoryBudget) addSkipped(s *Survey) {
	mounts := 0
	for _, n := range r.refusedByNamespace {
		mounts += n
	}
	if mounts > 0 {
		s.addSkip("%d mounts in %d mount namespaces that have more of the kind that is looked for than there is room for (%d KiB each, %d KiB in all)",
			mounts, len(r.refusedByNamespace), r.namespaceBytes>>10, r.totalBytes>>10)
	}
}
