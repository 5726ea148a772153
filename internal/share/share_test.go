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
