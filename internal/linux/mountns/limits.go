// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import "unsafe"

// limits bounds what a pass takes, in time and in memory. A user who may make a user
// namespace may make a hundred thousand mounts in each of thousands of mount
// namespaces.
type limits struct {
	// namespaces and mounts are how many are listed, at 16 bytes a mount.
	namespaces, mounts int
	// head is how much of a mount table is read at once. A table that is longer
	// has to wait until all others have been read, and of it no more than table
	// bytes are read, nor more than tables bytes of all.
	head, table, tables int
}

// standard is for a program that may take 256 MiB.
var standard = limits{namespaces: 65_536, mounts: 2_500_000, head: 1 << 20, table: 32 << 20, tables: 512 << 20}

// The room for the mounts that are described, in bytes: for those of one namespace,
// which is some 4,000 where paths are of ordinary length, and for all.
const (
	roomOfNamespace = 2 << 20
	roomOfAll       = 32 << 20
)

// What a Mount and a Namespace take without their texts.
const (
	mountSize     = int(unsafe.Sizeof(Mount{}))
	namespaceSize = int(unsafe.Sizeof(Namespace{}))
)

func (m *Mount) size() int {
	return mountSize + len(m.Root) + len(m.Point) + len(m.Options) + len(m.FSType) + len(m.Source) + len(m.SuperOptions)
}

// room is what is left for mounts that are described.
type room struct {
	all  int
	of   map[Namespace]int // what is taken
	over map[Namespace]int // how many had no room
}

func newRoom() *room {
	return &room{all: roomOfAll, of: map[Namespace]int{}, over: map[Namespace]int{}}
}

// any tells whether there may be room for one more of that namespace, and counts it
// where there is none.
func (r *room) any(ns Namespace) bool { return r.take(ns, 0) }

// take takes room, and counts what there is none for.
func (r *room) take(ns Namespace, size int) bool {
	if size+r.of[ns] > roomOfNamespace || size > r.all || r.over[ns] > 0 {
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
		s.skip("%d mounts in %d mount namespaces that have more of the kind that is looked for than there is room for (%d MiB each, %d MiB in all)",
			mounts, len(r.over), roomOfNamespace>>20, roomOfAll>>20)
	}
}
