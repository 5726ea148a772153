// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/sys"
)

// fakeMounts stands in for the kernel: mounts have directory entries, which
// have paths, and hooks may change them between any two readings.
type fakeMounts struct {
	entry map[uint64]string // mount -> directory entry
	path  map[string]string // directory entry -> path as the kernel writes it
	reads int
	hook  func(reading int)
}

func (f *fakeMounts) read(ref sys.MountRef) (uint64, []byte, error) {
	if f.reads++; f.hook != nil {
		f.hook(f.reads)
	}
	entry, ok := f.entry[ref.Mount]
	if !ok {
		return 0, nil, sys.ENOENT
	}
	return 1, []byte(f.path[entry]), nil
}

// pass looks at the mounts in order, as a kernelScan does, and gives those that
// are found deleted.
func pass(t *testing.T, r *roots, known map[uint64]*rooted, order ...uint64) []uint64 {
	t.Helper()
	r.begin()
	look := func() {
		for _, id := range order {
			if known[id] == nil {
				known[id] = &rooted{}
			}
			if err := r.look(known[id], sys.MountRef{Mount: id}); err != nil && !gone(err) {
				t.Fatal(err)
			}
		}
	}
	if look(); r.confirm() {
		look()
	}
	var deleted []uint64
	for _, id := range order {
		if known[id].deleted {
			deleted = append(deleted, id)
		}
	}
	return deleted
}

func TestRootsReadsOneMountOfEachClass(t *testing.T) {
	t.Parallel()
	f := &fakeMounts{entry: map[uint64]string{}, path: map[string]string{"a": "/a", "b": "/b", "root": "/"}}
	var order []uint64
	for id := uint64(1); id <= 100; id++ {
		f.entry[id] = []string{"a", "b", "root"}[id%3]
		order = append(order, id)
	}
	r, known := newRoots(f.read), map[uint64]*rooted{}
	for n, want := range []int{102, 2, 2, 2} { // at first, each once and two to confirm
		f.reads = 0
		if got := pass(t, r, known, order...); len(got) != 0 || f.reads != want {
			t.Errorf("pass %d: %d readings, want %d; deleted %v", n, f.reads, want, got)
		}
	}
	f.path["a"] = "/a//deleted"
	if got := pass(t, r, known, order...); len(got) != 33 {
		t.Errorf("%d deleted, want all 33 of the class", len(got))
	}
	f.reads = 0
	if got := pass(t, r, known, order...); len(got) != 33 || f.reads != 1 {
		t.Errorf("%d deleted after %d readings, want 33 after 1", len(got), f.reads)
	}
	if len(r.classes) != 1 {
		t.Errorf("%d classes kept, want 1", len(r.classes))
	}
}

// TestRootsTellsApart has mounts of different entries show the same path, one
// after the other.
func TestRootsTellsApart(t *testing.T) {
	t.Parallel()
	type step struct {
		do   func(f *fakeMounts)
		hook func(f *fakeMounts, reading int) // within the pass after do
		want []uint64
	}
	for name, steps := range map[string][]step{
		"old one deleted, new one bound": {
			{},
			{do: func(f *fakeMounts) { f.path["old"], f.path["new"] = "/x//deleted", "/x"; f.entry[3] = "new" }, want: []uint64{1, 2}},
			{do: func(f *fakeMounts) { f.path["new"] = "/x//deleted" }, want: []uint64{1, 2, 3}},
		},
		"old one moved, new one bound and deleted": {
			{},
			{do: func(f *fakeMounts) { f.path["old"], f.path["new"] = "/y", "/x"; f.entry[3] = "new" }},
			{do: func(f *fakeMounts) { f.path["new"] = "/x//deleted" }, want: []uint64{3}},
			{do: func(f *fakeMounts) { f.path["old"] = "/y//deleted" }, want: []uint64{1, 2, 3}},
		},
		"old ones gone, new one bound": {
			{},
			{do: func(f *fakeMounts) {
				delete(f.entry, 1)
				delete(f.entry, 2)
				f.path["new"], f.entry[3] = "/x", "new"
			}},
			{do: func(f *fakeMounts) { f.path["new"] = "/x//deleted" }, want: []uint64{3}},
		},
		"first of the old ones gone, new one bound": {
			{},
			{do: func(f *fakeMounts) { delete(f.entry, 1); f.path["old"], f.path["new"] = "/z", "/x"; f.entry[3] = "new" }},
			{do: func(f *fakeMounts) { f.path["new"] = "/x//deleted" }, want: []uint64{3}},
			{do: func(f *fakeMounts) { f.path["old"] = "/z//deleted" }, want: []uint64{2, 3}},
		},
		"replaced within the first pass": {
			{
				do: func(f *fakeMounts) { f.entry[3] = "new" },
				hook: func(f *fakeMounts, reading int) {
					if reading == 3 { // 1 and 2 were read as /x, 3 will be as well
						f.path["old"], f.path["new"] = "/x//deleted", "/x"
					}
				},
				want: []uint64{1, 2},
			},
			{do: func(f *fakeMounts) { f.path["new"] = "/x//deleted" }, want: []uint64{1, 2, 3}},
		},
		"gone before it is confirmed": {
			{hook: func(f *fakeMounts, reading int) {
				if reading == 3 {
					delete(f.entry, 1)
					f.path["old"] = "/x//deleted"
				}
			}, want: []uint64{2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeMounts{
				entry: map[uint64]string{1: "old", 2: "old"},
				path:  map[string]string{"old": "/x"},
			}
			r, known := newRoots(f.read), map[uint64]*rooted{}
			for n, s := range steps {
				if s.do != nil {
					s.do(f)
				}
				f.reads, f.hook = 0, nil
				if s.hook != nil {
					f.hook = func(reading int) { s.hook(f, reading) }
				}
				if diff := cmp.Diff(s.want, pass(t, r, known, f.order()...)); diff != "" {
					t.Errorf("pass %d: %s", n, diff)
				}
			}
		})
	}
}

func (f *fakeMounts) order() []uint64 {
	var order []uint64
	for id := uint64(1); id <= 3; id++ {
		if _, ok := f.entry[id]; ok {
			order = append(order, id)
		}
	}
	return order
}

// TestRootsFinal: what can never change is not read again, and never shared.
func TestRootsFinal(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]struct{ deleted, ever bool }{
		"/":                {false, true},
		"/x//deleted":      {true, true},
		"mnt:[4026531841]": {false, true},
		"":                 {false, true},
		"/x":               {false, false},
		"/deleted":         {false, false},
		"//deleted":        {false, false},
	} {
		if deleted, ever := final([]byte(root)); deleted != want.deleted || ever != want.ever {
			t.Errorf("final(%q) = %v, %v, want %v", root, deleted, ever, want)
		}
	}
}

func TestSpaceUpdateKeepsWhatIsKnown(t *testing.T) {
	t.Parallel()
	var s space
	s.update([]uint64{2, 4, 6, 8})
	for i, id := range s.ids {
		s.supers[i] = newSuper(0, uint32(id*100), id == 8)
	}
	s.update([]uint64{1, 4, 5, 8, 9})
	want := []super{0, superRead | 400, 0, superRead | superHang | 800, 0}
	if diff := cmp.Diff(want, s.supers); diff != "" {
		t.Error(diff)
	}
	before := &s.supers[0]
	s.update([]uint64{1, 4, 5, 8, 9})
	if before != &s.supers[0] {
		t.Error("copied though nothing changed")
	}
	s.update(nil)
	if len(s.ids) != 0 || len(s.supers) != 0 {
		t.Errorf("%d mounts left", len(s.supers))
	}
}

func TestInodeOf(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]uint64{"mnt:[4026531841]": 4026531841, "mnt:[0]": 0} {
		if got, ok := inodeOf(link); !ok || got != want {
			t.Errorf("inodeOf(%q) = %d, %v, want %d", link, got, ok, want)
		}
	}
	for _, link := range []string{"net:[1]", "mnt:[x]", "mnt:[1", "mnt:1]", "mnt:[-1]", ""} {
		if got, ok := inodeOf(link); ok {
			t.Errorf("inodeOf(%q) = %d, want none", link, got)
		}
	}
}

func TestSizesOfLimits(t *testing.T) {
	t.Parallel()
	if size := int(reflect.TypeFor[Mount]().Size()); size != mountSize {
		t.Errorf("a Mount takes %d bytes, want %d", size, mountSize)
	}
	if size := int(reflect.TypeFor[Namespace]().Size()); size != namespaceSize {
		t.Errorf("a Namespace takes %d bytes, want %d", size, namespaceSize)
	}
}
