// SPDX-FileCopyrightText: What a header says does not count

// Package one is a product. What it says counts.
package one

// wide has four fields.
type wide[T any] struct {
	wide2
	first, second T
	third         int // That is a comment as well.
}

type wide2 struct{}

func (w *wide[T]) long(parameter int) (result int) {
	for index := range parameter {
		local, _ := index, 0
		result += local
	}
	return result
}

func (w wide[T]) Exported() {}

func (*wide2) shared() {}
