package one

const constant = 1

func (w *wide[T]) other() {}
