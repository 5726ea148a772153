// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"cmp"
	"slices"
	"strings"
	"sync"
)

// Table answers questions about one mount table. It finds mounts the way the kernel's path lookup does: from the root
// down, component by component, onto the topmost mount at each, so that it does not find mounts that another one hides.
type Table struct {
	mounts   []Mount
	byID     map[int]int
	children map[int][]int // parent ID -> indexes, in the text's order
	roots    []int         // mounts whose parent is not in the table
	// Each index is made at its first use: few questions need more than one, and a node may have a hundred thousand mounts.
	way     func() wayIndex
	points  func() index[string]    // of every mount at a point
	devices func() index[device]    // of the mounts of each file system
	showing func() index[directory] // of the mounts with the same directory of a file system
}

// wayIndex serves lookups of paths. It makes work over mounts that are stacked at one place linear in their number.
type wayIndex struct {
	// at is the index of the first mount on a mount with that ID at a point below its own.
	at map[place]int
	// root is the lowest mount at "/", -1: none.
	root int
	// top is, by index, the highest of the mounts that are stacked on a mount at its point.
	top []int
}

// index has the indexes of mounts by a key, in the text's order. It takes no memory of its own for each key: there are as many as mounts.
type index[K comparable] struct {
	first map[K]int
	next  []int // by index, the next one with the same key; -1: none
}

func newIndex[K comparable](mounts []Mount, key func(m *Mount) K) index[K] {
	x := index[K]{first: make(map[K]int, len(mounts)), next: make([]int, len(mounts))}
	for i := len(mounts) - 1; i >= 0; i-- {
		k := key(&mounts[i])
		x.next[i] = -1
		if next, known := x.first[k]; known {
			x.next[i] = next
		}
		x.first[k] = i
	}
	return x
}

// of are the indexes with a key.
func (x index[K]) of(key K) (all []int) {
	for i, known := x.first[key]; known && i >= 0; i = x.next[i] {
		all = append(all, i)
	}
	return all
}

type device struct{ major, minor uint32 }

// place is where a mount lies on its parent: the way from the parent's point, with the slash before it.
type place struct {
	parent int
	way    string
}

// directory is one of a file system.
type directory struct {
	of   device
	name string
}

// maxPath is the longest path of the kernel's lookup. Each component of a longer one would be work.
const maxPath = 4096

// NewTable makes a table of mounts, which it keeps.
func NewTable(mounts []Mount) *Table {
	t := &Table{
		mounts:   mounts,
		byID:     make(map[int]int, len(mounts)),
		children: make(map[int][]int, len(mounts)/4),
	}
	for i := range mounts {
		t.byID[mounts[i].ID] = i
	}
	for i := range mounts {
		parent := mounts[i].Parent
		if _, known := t.byID[parent]; !known || parent == mounts[i].ID {
			t.roots = append(t.roots, i)
		} else {
			t.children[parent] = append(t.children[parent], i)
		}
	}
	t.way = sync.OnceValue(t.indexWay)
	t.points = sync.OnceValue(func() index[string] { return newIndex(mounts, func(m *Mount) string { return m.Point }) })
	t.devices = sync.OnceValue(func() index[device] {
		return newIndex(mounts, func(m *Mount) device { return device{m.Major, m.Minor} })
	})
	t.showing = sync.OnceValue(func() index[directory] {
		return newIndex(mounts, func(m *Mount) directory { return directory{device{m.Major, m.Minor}, m.Root} })
	})
	return t
}

func (t *Table) indexWay() wayIndex {
	w := wayIndex{at: make(map[place]int, len(t.mounts)), root: -1, top: make([]int, len(t.mounts))}
	if i := slices.IndexFunc(t.roots, func(i int) bool { return t.mounts[i].Point == "/" }); i >= 0 {
		w.root = t.roots[i]
	}
	stacked := map[int]int{} // mount ID -> index of the first mount on it at its own point
	for i := range t.mounts {
		m := &t.mounts[i]
		w.top[i] = -1
		parent, known := t.byID[m.Parent]
		if !known || m.Parent == m.ID || !Within(t.mounts[parent].Point, m.Point) {
			continue
		}
		if m.Point == t.mounts[parent].Point {
			if _, known := stacked[m.Parent]; !known {
				stacked[m.Parent] = i
			}
			continue
		}
		p := place{m.Parent, m.Point[wayBegin(t.mounts[parent].Point):]}
		if _, known := w.at[p]; !known {
			w.at[p] = i
		}
	}
	var below []int
	for i := range t.mounts {
		below = below[:0]
		// A table that is no tree, as only a forged text holds, must not hang us.
		for w.top[i] < 0 && len(below) < len(t.mounts) {
			below = append(below, i)
			next, ok := stacked[t.mounts[i].ID]
			if !ok {
				w.top[i] = i
				break
			}
			i = next
		}
		top := max(w.top[i], 0)
		for _, j := range below {
			w.top[j] = top
		}
	}
	return w
}

// Mounts is every mount, in the text's order. It is not to be changed.
func (t *Table) Mounts() []Mount { return t.mounts }

// ByID is the mount with that ID.
func (t *Table) ByID(id int) (Mount, bool) {
	i, ok := t.byID[id]
	if !ok {
		return Mount{}, false
	}
	return t.mounts[i], true
}

// Children are the mounts that are mounted on the one with that ID, at its
// root or below, in the text's order.
func (t *Table) Children(id int) []Mount { return t.mountsAt(t.children[id]) }

// All is every mount at point, visible or hidden, in the text's order.
func (t *Table) All(point string) []Mount {
	return t.mountsAt(t.points().of(point))
}

// OfDevice is every mount of the file system with that device number, visible or hidden, in the text's order.
func (t *Table) OfDevice(major, minor uint32) []Mount {
	return t.mountsAt(t.devices().of(device{major, minor}))
}

// HasDevice reports whether a mount of the file system with that device number is in the table.
func (t *Table) HasDevice(major, minor uint32) bool {
	_, known := t.devices().first[device{major, minor}]
	return known
}

// Showing is every mount of the file system with that device number that shows the directory called name in it, visible
// or hidden, in the text's order: its root is that directory, or a directory above it. Beyond limit mounts it returns
// nil.
func (t *Table) Showing(major, minor uint32, name string, limit int) (found []Mount, more bool) {
	if len(name) > maxPath {
		return nil, false
	}
	var indexes []int
	for {
		indexes = append(indexes, t.showing().of(directory{device{major, minor}, name})...)
		if len(indexes) > limit {
			return nil, true
		}
		if name == "/" || name == "" {
			break
		}
		name = cmp.Or(name[:max(0, strings.LastIndexByte(name, '/'))], "/")
	}
	slices.Sort(indexes)
	return t.mountsAt(indexes), false
}

// wayBegin is where the way begins of a path below point.
func wayBegin(point string) int {
	if point == "/" {
		return 0
	}
	return len(point)
}

// Position is the place of the mount with that ID in the text's order, -1 if there is none.
func (t *Table) Position(id int) int {
	if i, ok := t.byID[id]; ok {
		return i
	}
	return -1
}

// Under is every mount at dir or below it, visible or hidden, in the text's
// order. /a is not above /ab.
func (t *Table) Under(dir string) []Mount {
	var found []Mount
	for _, m := range t.mounts {
		if Within(dir, m.Point) {
			found = append(found, m)
		}
	}
	return found
}

// Within reports whether path is dir or lies below it. Both are clean and
// absolute.
func Within(dir, path string) bool {
	if dir == "/" {
		return strings.HasPrefix(path, "/")
	}
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/')
}

// Below is the way from dir to path, without a slash before it; empty: path is
// dir. ok is false if path is neither dir nor below it.
func Below(dir, path string) (way string, ok bool) {
	if !strings.HasPrefix(dir, "/") || !Within(dir, path) {
		return "", false
	}
	return strings.Trim(strings.TrimPrefix(path, strings.TrimSuffix(dir, "/")), "/"), true
}

// On is the mount that the clean, absolute path lies on. A table without a root has no such mount, as in a namespace
// that is seen through a chroot. Nor has a path that is too long for a lookup.
func (t *Table) On(path string) (Mount, bool) {
	at := t.way().root
	if at < 0 || len(path) > maxPath {
		return Mount{}, false
	}
	// A table that is no tree, as only a forged text holds, must not hang us.
	for range t.mounts {
		at = t.way().top[at]
		next := t.nextOnPath(at, path)
		if next < 0 {
			break
		}
		at = next
	}
	return t.mounts[at], true
}

// Top is the visible mount at point.
func (t *Table) Top(point string) (Mount, bool) {
	m, ok := t.On(point)
	if !ok || m.Point != point {
		return Mount{}, false
	}
	return m, true
}

// Stack lists the mounts at the point of m that lie on each other, from m down.
func (t *Table) Stack(m Mount) []Mount {
	stack := []Mount{m}
	for len(stack) < len(t.mounts) { // a table that is no tree, as only a forged text holds, must not hang us
		below, ok := t.ByID(stack[len(stack)-1].Parent)
		if !ok || below.Point != m.Point {
			break
		}
		stack = append(stack, below)
	}
	return stack
}

// nextOnPath is the mount on the one at index that a lookup of path meets first: the
// one with the shortest point. -1: none.
func (t *Table) nextOnPath(index int, path string) int {
	on := &t.mounts[index]
	if len(t.children[on.ID]) == 0 || !Within(on.Point, path) {
		return -1
	}
	for end := len(on.Point); end < len(path); {
		next := strings.IndexByte(path[end+1:], '/')
		if end += 1 + next; next < 0 {
			end = len(path)
		}
		if i, ok := t.way().at[place{on.ID, path[wayBegin(on.Point):end]}]; ok {
			return i
		}
	}
	return -1
}

func (t *Table) mountsAt(indexes []int) []Mount {
	if len(indexes) == 0 {
		return nil
	}
	found := make([]Mount, len(indexes))
	for i, index := range indexes {
		found[i] = t.mounts[index]
	}
	return found
}
