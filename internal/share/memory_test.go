// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"testing"
)

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
