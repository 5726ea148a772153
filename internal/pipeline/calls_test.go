// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// calling is a recoverer that says which calls it makes.
type calling struct{ *unmounter }

func (c calling) Open() repair.Apply { return c.apply }

func (c calling) apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	applied, err := c.unmounter.apply(ctx, r, a)
	_ = calls.From(ctx).Did("umount2", a.Target, err)
	return applied, err
}

// TestCallsOfActions are those of all attempts, and they are in the journal.
func TestCallsOfActions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rec := calling{&unmounter{kernel: newKernel(7), failApply: atCall(1, errBroken)}}
	j := newJob(t, nil, rec)
	want := []v1.ActionCall{{Name: "umount2", Arguments: "/m/7", Result: errBroken.Error()}, {Name: "umount2", Arguments: "/m/7", Result: calls.OK}}
	for _, when := range []string{"first", "from the journal"} {
		report := mustRun(t, newRunner(t, dir), j)
		if diff := cmp.Diff(want, report.Operations[0].Actions[0].Calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
}
