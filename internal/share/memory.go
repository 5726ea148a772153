// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

// Memory remembers values by key. Owners share its places. If one has none left, its own values are forgotten, and then
// those of its namespace. Those of others stay.
type Memory[K comparable, V any] struct {
	room  Room
	items map[K]remembered[V]
}

type remembered[V any] struct {
	owner Owner
	value V
}

// NewMemory makes an empty Memory with so many places.
func NewMemory[K comparable, V any](places int) *Memory[K, V] {
	return &Memory[K, V]{room: Room{Places: places}, items: map[K]remembered[V]{}}
}

// Get returns a value, and whether it is remembered.
func (m *Memory[K, V]) Get(key K) (V, bool) {
	item, ok := m.items[key]
	return item.value, ok
}

// Set remembers a value.
func (m *Memory[K, V]) Set(o Owner, key K, value V) {
	m.Delete(key)
	for _, is := range []func(Owner) bool{
		func(other Owner) bool { return other == o },
		func(other Owner) bool { return other.Namespace == o.Namespace },
	} {
		if m.room.May(o) {
			break
		}
		for old, item := range m.items {
			if is(item.owner) {
				m.Delete(old)
			}
		}
	}
	if m.room.Take(o) {
		m.items[key] = remembered[V]{o, value}
	}
}

// Delete forgets a value.
func (m *Memory[K, V]) Delete(key K) {
	if item, ok := m.items[key]; ok {
		m.room.Free(item.owner)
		delete(m.items, key)
	}
}
