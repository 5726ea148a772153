// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

// limits bounds what a pass takes, in time and in memory. A user who may make a user
// namespace may make a hundred thousand mounts in each of thousands of mount
// namespaces.
type limits struct {
	// namespaces and mounts are how many are listed, at 16 bytes a mount.
	namespaces, mounts int
	// head is how much of a mount table is read at once, and heads how much of all. A
	// table that is longer has to wait until all others have been read; of it no more
	// than table bytes are read, and tables bytes of all of that length.
	head, heads, table, tables int
	// room is what the mounts that are described may take, in bytes: those of one
	// namespace, which is some 8,000 where paths are of ordinary length, and all.
	roomOfOne, roomOfAll int
}

// standard is for a program that may take 256 MiB.
var standard = limits{
	namespaces: 65_536, mounts: 1_000_000,
	head: 1 << 20, heads: 512 << 20, table: 16 << 20, tables: 64 << 20,
	roomOfOne: 4 << 20, roomOfAll: 32 << 20,
}

// The sizes of a Mount and a Namespace without their texts, in bytes.
const (
	mountSize     = 232
	namespaceSize = 72
)

func (m *Mount) size() int {
	return mountSize + len(m.Root) + len(m.Point) + len(m.Options) + len(m.FSType) + len(m.Source) + len(m.SuperOptions)
}

// room is what is left for mounts that are described.
type room struct {
	limits
	all  int
	of   map[Namespace]int // what is taken
	over map[Namespace]int // how many had no room
}

func newRoom(l limits) *room {
	return &room{limits: l, all: l.roomOfAll, of: map[Namespace]int{}, over: map[Namespace]int{}}
}

// any reports whether there may be room for one more of that namespace, and counts it
// where there is none.
func (r *room) any(ns Namespace) bool { return r.reserve(ns, 0) }

// reserve takes room, and counts what there is none for.
func (r *room) reserve(ns Namespace, size int) bool {
	if size+r.of[ns] > r.roomOfOne || size > r.all || r.over[ns] > 0 {
		r.over[ns]++
		return false
	}
	if size > 0 {
		r.of[ns] += size
		r.all -= size
	}
	return true
}

// report says how many had none.
func (r *room) report(s *Survey) {
	mounts := 0
	for _, n := range r.over {
		mounts += n
	}
	if mounts > 0 {
		s.skip("%d mounts in %d mount namespaces that have more of the kind that is looked for than there is room for (%d KiB each, %d KiB in all)",
			mounts, len(r.over), r.roomOfOne>>10, r.roomOfAll>>10)
	}
}
