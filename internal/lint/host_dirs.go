// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"iter"
	"path"
	"strings"
)

// maxHostPath is the longest path that can be mounted, in bytes.
const maxHostPath = 4096

// HostDirs are directories of the host. A list of them is searched once for each mount of each workload, so each directory is found by its name and by
// those of its parents. The zero value has none.
type HostDirs struct {
	names []string
	// at has the index of the first of names with a path, within that of the first which has the path or lies below it.
	at, within map[string]int
}

// Add adds directories.
func (h *HostDirs) Add(dirs ...string) {
	if h.at == nil {
		h.at, h.within = map[string]int{}, map[string]int{}
	}
	for _, dir := range dirs {
		i, clean := len(h.names), path.Clean(dir)
		h.names = append(h.names, dir)
		for parent := range withParents(clean) {
			setFirst(h.within, parent, i)
		}
		setFirst(h.at, clean, i)
	}
}

func setFirst(indexes map[string]int, dir string, i int) {
	if _, known := indexes[dir]; !known {
		indexes[dir] = i
	}
}

// overlapping returns the first of the directories that lies in another directory, or in which that lies.
func (h *HostDirs) overlapping(dir string) (name string, ok bool) {
	first := len(h.names)
	if i, known := h.within[dir]; known {
		first = i
	}
	for parent := range withParents(dir) {
		if i, known := h.at[parent]; known {
			first = min(first, i)
		}
	}
	if first == len(h.names) {
		return "", false
	}
	return h.names[first], true
}

// withParents goes from a clean absolute path up to the root. It leaves out a path that is too long.
func withParents(dir string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(dir) <= maxHostPath && yield(dir) && dir != "/" {
			i := strings.LastIndexByte(dir, '/')
			if i < 0 {
				return
			}
			dir = dir[:max(i, 1)]
		}
	}
}
