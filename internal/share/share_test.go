// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"testing"
)

// fill takes as many places as one owner gets.
func (r *Room) fill(o Owner) int {
	n := 0
	for r.Take(o) {
		n++
	}
	return n
}

// TestRoomKeepsAPlace: no namespace takes all places, however many pods it has, and each one that comes finds one.
func TestRoomKeepsAPlace(t *testing.T) {
	t.Parallel()
	for _, places := range []int{1, 3, 32, 1000} {
		r := &Room{Places: places}
		tenant := 0
		for pod := range 2 * places {
			tenant += r.fill(Owner{"tenant", fmt.Sprint(pod)})
		}
		if tenant > max(1, places/4) {
			t.Errorf("a namespace has %d of %d places", tenant, places)
		}
		for i := range 3 * places {
			if r.fill(Owner{fmt.Sprint("late-", i), "pod"}) == 0 {
				t.Fatalf("of %d places, none is left for namespace %d", places, i)
			}
		}
		if most := places + 3*places; r.Taken() > most {
			t.Errorf("%d of %d places are taken", r.Taken(), places)
		}
	}
}

// TestPodsShareTheirNamespace: one pod leaves a place to the others of its namespace.
func TestPodsShareTheirNamespace(t *testing.T) {
	t.Parallel()
	r := &Room{Places: 32}
	if one := r.fill(Owner{"shop", "a"}); one != 2 {
		t.Errorf("a pod has %d places of the 8 of its namespace", one)
	}
	if !r.Take(Owner{"shop", "b"}) {
		t.Error("the second pod has none")
	}
}

// TestRoomIsGivenBack: a place that is given back can be taken again, and is not given back twice.
func TestRoomIsGivenBack(t *testing.T) {
	t.Parallel()
	r, o := &Room{Places: 100}, Owner{"shop", "a"}
	first := r.fill(o)
	for range first + 3 {
		r.Free(o)
	}
	r.Free(Owner{"other", "x"})
	if r.Taken() != 0 || len(r.holders) != 0 {
		t.Errorf("%d are taken, by %v", r.Taken(), r.holders)
	}
	if again := r.fill(o); again != first {
		t.Errorf("%d places, and then %d", first, again)
	}
}

// TestTheNodeItselfHasAllPlaces, and no more.
func TestTheNodeItselfHasAllPlaces(t *testing.T) {
	t.Parallel()
	r := &Room{Places: 7}
	if n := r.fill(Owner{}); n != 7 {
		t.Errorf("%d places", n)
	}
	if !r.Take(Owner{"shop", "a"}) || r.Take(Owner{"shop", "a"}) {
		t.Error("a namespace has one place when all are taken")
	}
	if (&Room{}).Take(Owner{}) {
		t.Error("no place was taken")
	}
}

// TestMemoryOfOthersStays: a namespace that fills its share again and again loses its own values. Others keep theirs, and the last value of
// each is there.
func TestMemoryOfOthersStays(t *testing.T) {
	t.Parallel()
	m := NewMemory[string, int](100)
	m.Set(Owner{"shop", "web"}, "shop", 7)
	m.Set(Owner{"tenant", "small"}, "small", 8)
	most := 0
	for i := range 10_000 {
		key := fmt.Sprint(i)
		m.Set(Owner{"tenant", "many"}, key, i)
		if got, ok := m.Get(key); !ok || got != i {
			t.Fatalf("the last one, %d, is %d, %t", i, got, ok)
		}
		most = max(most, m.room.Taken())
	}
	if most > 25 {
		t.Errorf("%d places are taken", most)
	}
	for key, want := range map[string]int{"shop": 7, "small": 8} {
		if got, ok := m.Get(key); !ok || got != want {
			t.Errorf("%s is %d, %t", key, got, ok)
		}
	}
	m.Set(Owner{"other", "x"}, "shop", 9) // another owner takes the key
	m.Delete("small")
	m.Delete("small")
	if got, _ := m.Get("shop"); got != 9 {
		t.Errorf("shop is %d", got)
	}
	if n := len(m.items); n != m.room.Taken() {
		t.Errorf("%d values, %d places", n, m.room.Taken())
	}
}

// TestMemoryOfManyPods: pods of one namespace make room for each other, and each keeps its last value at least until then.
func TestMemoryOfManyPods(t *testing.T) {
	t.Parallel()
	m := NewMemory[int, int](16)
	for i := range 1000 {
		m.Set(Owner{"tenant", fmt.Sprint(i)}, i, i)
		if _, ok := m.Get(i); !ok || m.room.Taken() > 4 {
			t.Fatalf("%d is remembered: %t, of %d", i, ok, m.room.Taken())
		}
	}
}

func TestSeveral(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		counts map[string]int
		needed int
		want   bool
	}{
		{nil, 1, false},
		{map[string]int{"tenant": 99}, 3, false},
		{map[string]int{"tenant": 99, "shop": 1}, 3, false},
		{map[string]int{"tenant": 99, "shop": 2}, 3, true},
		{map[string]int{"tenant": 3, "shop": 3}, 3, true},
		{map[string]int{"a": 1, "b": 1, "c": 1}, 3, true},
		{map[string]int{"a": 1, "b": 1}, 3, false},
		{map[string]int{"a": 1}, 1, false},
		{map[string]int{"a": 1, "b": 1}, 1, true},
		{map[string]int{"": 3}, 3, true},
		{map[string]int{"": 1, "tenant": 99}, 3, false},
		{map[string]int{"": 2}, 3, false},
	} {
		t.Run(fmt.Sprint(tc.counts, " of ", tc.needed), func(t *testing.T) {
			t.Parallel()
			if got := Several(tc.counts, tc.needed); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}
