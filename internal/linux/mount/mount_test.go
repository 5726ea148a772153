// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mount

import (
	"errors"
	"testing"
)

func TestIDSame(t *testing.T) {
	t.Parallel()
	id := ID{UniqueID: 900, MountInfoID: 30, Parent: 20, Major: 8, Minor: 1, Root: "/r", Point: "/p"}
	with := func(change func(*ID)) ID {
		other := id
		change(&other)
		return other
	}
	for name, tc := range map[string]struct {
		a, b ID
		want bool
	}{
		"itself":                       {id, id, true},
		"moved, same unique number":    {id, with(func(o *ID) { o.Point = "/q" }), true},
		"number used again":            {id, with(func(o *ID) { o.UniqueID++ }), false},
		"one without a unique number":  {id, with(func(o *ID) { o.UniqueID = 0 }), true},
		"without, other number":        {id, with(func(o *ID) { o.UniqueID, o.MountInfoID = 0, 31 }), false},
		"without, other root":          {id, with(func(o *ID) { o.UniqueID, o.Root = 0, "/r//deleted" }), false},
		"without, other point":         {id, with(func(o *ID) { o.UniqueID, o.Point = 0, "/q" }), false},
		"without, other device":        {id, with(func(o *ID) { o.UniqueID, o.Minor = 0, 2 }), false},
		"without, other parent":        {id, with(func(o *ID) { o.UniqueID, o.Parent = 0, 21 }), false},
		"neither, and all else agrees": {with(func(o *ID) { o.UniqueID = 0 }), with(func(o *ID) { o.UniqueID = 0 }), true},
	} {
		if got := tc.a.Same(tc.b); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if got := tc.b.Same(tc.a); got != tc.want {
			t.Errorf("%s, the other way round: %v, want %v", name, got, tc.want)
		}
	}
}

func TestErrorsSayWhat(t *testing.T) {
	t.Parallel()
	id := ID{MountInfoID: 30, Root: "/r", Point: "/p"}
	now := ID{UniqueID: 7, MountInfoID: 31, Root: "/new", Point: "/p"}
	err := error(&Error{Op: "compare", Target: "/p", Err: &ChangedError{Want: id, Found: now}})
	want := `compare "/p": another mount is there now: want mount 30 of "/r" at "/p", found mount 31 (7) of "/new" at "/p"`
	if err.Error() != want {
		t.Errorf("%s, want %s", err, want)
	}
	if !errors.Is(err, ErrChanged) || errors.Is(err, ErrBusy) {
		t.Errorf("%v is not what it says", err)
	}
}
