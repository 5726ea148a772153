// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"errors"
	"strings"
	"testing"
)

func TestLog(t *testing.T) {
	t.Parallel()
	if l := From(t.Context()); l != nil || l.Did("umount2", "/a", nil) != nil || l.All() != nil {
		t.Error("a context without a log keeps calls")
	}
	l := &Log{}
	ctx, broken := With(t.Context(), l), errors.New("device or resource busy")
	if err := From(ctx).Did("umount2", "/a MNT_DETACH", broken); err != broken { //nolint:errorlint // the very error
		t.Errorf("error %v", err)
	}
	_ = From(ctx).Did("move_mount", "/b", nil)
	want := []Call{{"umount2", "/a MNT_DETACH", "device or resource busy"}, {"move_mount", "/b", OK}}
	if got := l.All(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("calls %v", got)
	}
	if got := l.Take(); len(got) != 2 || len(l.All()) != 0 {
		t.Errorf("taken %v, left %v", got, l.All())
	}
	l.Add(want...)
	for range 2 * MaxCalls {
		l.Add(Call{Name: "x", Arguments: strings.Repeat("é", MaxBytes)})
	}
	got := l.All()
	if len(got) != MaxCalls || len(got[2].Arguments) > MaxBytes || !strings.HasSuffix(got[2].Arguments, "é...") {
		t.Errorf("%d calls, %q", len(got), got[2].Arguments)
	}
}
