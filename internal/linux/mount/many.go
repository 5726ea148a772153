// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"slices"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// openAtOnce is of how many points InspectAll has descriptors open at once.
const openAtOnce = 256

// InspectAll is Inspect of many points, and calls then with the index of each,
// in their order. Where the kernel gives its mount table only as a whole, it is
// read once for many points, not once for each.
func InspectAll(points []string, then func(i int, st State, err error)) {
	t, whole := view{}.ask().(table)
	if !whole {
		for i, point := range points {
			st, err := Inspect(point)
			then(i, st, err)
		}
		return
	}
	done := 0
	for some := range slices.Chunk(points, openAtOnce) {
		t.inspectSome(some, func(i int, st State, err error) { then(done+i, st, err) })
		done += len(some)
	}
}

// inspectSome opens all points, and then reads the table.
func (t table) inspectSome(points []string, then func(i int, st State, err error)) {
	fds, errs := make([]*sys.FD, len(points)), make([]error, len(points))
	batch := mountns.NewBatch()
	for i, point := range points {
		fds[i], errs[i] = batch.Lookup(point)
		defer fds[i].Close()
	}
	mounts, failure := mountns.Table(0)
	for i, point := range points {
		if errs[i] != nil {
			then(i, State{}, &Error{Op: "look up", Target: point, Err: errs[i]})
			continue
		}
		st, err := State{}, failure
		if err == nil {
			st, err = t.identifyIn(mounts, fds[i], point)
		}
		if err != nil {
			err = &Error{Op: "inspect", Target: point, Err: err}
		}
		then(i, st, err)
	}
}
