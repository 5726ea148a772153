// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"strings"
)

// Table answers questions about one mount table. It finds mounts the way the
// kernel's path lookup does: from the root down, component by component, onto
// the topmost mount at each, so that what another mount hides is not found.
type Table struct {
	mounts   []Mount
	byID     map[int]int
	children map[int][]int // parent ID -> indexes, in the text's order
	roots    []int         // mounts whose parent is not in the table
}

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
	return t
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
	var found []Mount
	for _, m := range t.mounts {
		if m.Point == point {
			found = append(found, m)
		}
	}
	return found
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

// On is the mount that the clean, absolute path lies on. There is none where
// the table has no root, as in a namespace that is seen through a chroot.
func (t *Table) On(path string) (Mount, bool) {
	at := t.rootIndex()
	if at < 0 {
		return Mount{}, false
	}
	// A table that is no tree, as only a forged text holds, must not hang us.
	for range t.mounts {
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

// rootIndex is the lowest mount at "/".
func (t *Table) rootIndex() int {
	for _, i := range t.roots {
		if t.mounts[i].Point == "/" {
			return i
		}
	}
	return -1
}

// nextOnPath is the mount on the one at index that a lookup of path meets first: the
// one with the shortest point. A mount on the very root comes before all.
func (t *Table) nextOnPath(index int, path string) int {
	found := -1
	for _, i := range t.children[t.mounts[index].ID] {
		point := t.mounts[i].Point
		if Within(point, path) && (found < 0 || len(point) < len(t.mounts[found].Point)) {
			found = i
		}
	}
	return found
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
