package one

import "tree/internal/two"

const constant = 1

func (w *wide[T]) other() { first() }

type deep struct {
	wide[int]
	two.Pair
	*deep
}

func first() { second() }

func second() { third(); often() }

func third() { often() }

func often() {}

func inTable() {}

var table = []func(){inTable}
