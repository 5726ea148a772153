// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

// Store keeps the items of a work queue of client-go in Turns. The work queue locks it.
type Store[T any] struct {
	turns Turns[T]
	owner func(T) Owner
}

// NewStore makes an empty Store. owner returns the owner of an item.
func NewStore[T any](owner func(T) Owner) *Store[T] { return &Store[T]{owner: owner} }

// Touch is called if an item is added that waits already. The item keeps its place.
func (s *Store[T]) Touch(T) {}

// Push adds an item.
func (s *Store[T]) Push(item T) { s.turns.Push(s.owner(item), item) }

// Len is how many items wait.
func (s *Store[T]) Len() int { return s.turns.Len() }

// Pop takes out the item whose turn it is. The work queue has called Len before.
func (s *Store[T]) Pop() T {
	item, _ := s.turns.Pop(nil)
	return item
}
