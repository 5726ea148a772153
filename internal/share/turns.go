// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import "slices"

// Turns is a queue in which namespaces take turns, and in each of them its pods. The items of a pod keep their order. A
// namespace that comes later waits for one turn of each other one. The zero value is empty.
type Turns[T any] struct {
	length int
	ring   []*line[T] // the namespace whose turn it is comes first
	lines  map[string]*line[T]
}

// line has the items of a namespace.
type line[T any] struct {
	namespace string
	ring      []*podLine[T] // the pod whose turn it is comes first
	lines     map[string]*podLine[T]
}

type podLine[T any] struct {
	pod   string
	items []T
}

// Len returns the number of items that wait.
func (t *Turns[T]) Len() int { return t.length }

// Namespaces returns the number of namespaces with items that wait.
func (t *Turns[T]) Namespaces() int { return len(t.ring) }

// Push adds an item.
func (t *Turns[T]) Push(o Owner, item T) {
	t.length++
	l := t.lines[o.Namespace]
	if l == nil {
		l = &line[T]{namespace: o.Namespace, lines: map[string]*podLine[T]{}}
		if t.lines == nil {
			t.lines = map[string]*line[T]{}
		}
		t.lines[o.Namespace], t.ring = l, append(t.ring, l)
	}
	p := l.lines[o.Pod]
	if p == nil {
		p = &podLine[T]{pod: o.Pod}
		l.lines[o.Pod], l.ring = p, append(l.ring, p)
	}
	p.items = append(p.items, item)
}

// Pop takes out the item whose turn it is, of the namespaces that may have one. nil: all may.
func (t *Turns[T]) Pop(may func(namespace string) bool) (item T, ok bool) {
	_, item, ok = t.PopOwner(may)
	return item, ok
}

// PopOwner is Pop, with the owner of the item.
func (t *Turns[T]) PopOwner(may func(namespace string) bool) (owner Owner, item T, ok bool) {
	i := t.next(may)
	if i < 0 {
		return owner, item, false
	}
	l := t.ring[i]
	p := l.ring[0]
	owner = Owner{l.namespace, p.pod}
	item, p.items = p.items[0], p.items[1:]
	l.ring = l.ring[1:]
	if len(p.items) > 0 {
		l.ring = append(l.ring, p)
	} else {
		delete(l.lines, p.pod)
	}
	if i == 0 {
		t.ring = t.ring[1:]
	} else {
		t.ring = slices.Delete(t.ring, i, i+1)
	}
	if len(l.ring) > 0 {
		t.ring = append(t.ring, l)
	} else {
		delete(t.lines, l.namespace)
	}
	t.length--
	return owner, item, true
}

// Ready reports whether Pop would return an item.
func (t *Turns[T]) Ready(may func(namespace string) bool) bool { return t.next(may) >= 0 }

// next returns the position of the namespace whose turn it is, or -1.
func (t *Turns[T]) next(may func(namespace string) bool) int {
	return slices.IndexFunc(t.ring, func(l *line[T]) bool { return may == nil || may(l.namespace) })
}

// InTurns orders items: the first of each namespace, then the second, and so on, and in each namespace by its pods in the
// same way. The items of a pod, and the first ones of pods and namespaces, keep their order.
func InTurns[T any](items []T, owner func(T) Owner) []T {
	var turns Turns[T]
	for _, item := range items {
		turns.Push(owner(item), item)
	}
	ordered := make([]T, 0, len(items))
	for item, ok := turns.Pop(nil); ok; item, ok = turns.Pop(nil) {
		ordered = append(ordered, item)
	}
	return ordered
}

// Rounds divides items into rounds: one item of each namespace in a round, with its pods in turns. It keeps the order as InTurns does.
func Rounds[T any](items []T, owner func(T) Owner) (rounds [][]T) {
	had := map[string]int{}
	for _, item := range InTurns(items, owner) {
		namespace := owner(item).Namespace
		i := had[namespace]
		had[namespace]++
		if i == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[i] = append(rounds[i], item)
	}
	return rounds
}

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
