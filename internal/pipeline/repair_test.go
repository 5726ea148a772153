// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// TestPlanOnly ends with the plan, changes nothing, and does not ask BeforeRepair; the end is the same when it is run again.
func TestPlanOnly(t *testing.T) {
	t.Parallel()
	n := newKernel(1, 2)
	recoverer, after := &unmounter{kernel: n}, gives("after", "x")
	j := newJob(t, nil, gives("before", "x"), recoverer, after)
	j.PlanOnly = true
	j.BeforeRepair = func(context.Context, report, replan) error { return errors.New("was asked") }
	dir := t.TempDir()
	for range 2 {
		r := mustRun(t, newRunner(t, dir), j)
		if !r.Planned || r.Succeeded || len(r.Failed) > 0 || len(r.Operations) != 2 {
			t.Fatalf("report %+v", r)
		}
		last := r.Operations[1]
		if last.Phase != v1.OperationSucceeded || len(last.Actions) != 2 || last.Actions[0].Phase != v1.ActionPlanned || len(last.Findings) != 2 || last.Findings[0].Healed {
			t.Errorf("the recoverer: %+v", last)
		}
	}
	if len(n.effects) > 0 || recoverer.applies+recoverer.proofs+after.calls > 0 || recoverer.plans != 1 {
		t.Errorf("effects %v, %d plans, %d calls that act", n.effects, recoverer.plans, recoverer.applies)
	}
}

// TestPlanOnlyGoesOn where nothing is to be changed.
func TestPlanOnlyGoesOn(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, &empty{}, gives("after", "x"))
	j.PlanOnly = true
	r := mustRun(t, newRunner(t, t.TempDir()), j)
	if !r.Succeeded || r.Planned || r.Results["after"] != "x" {
		t.Errorf("report %+v", r)
	}
	if o := r.Operations[0]; !o.NoFault || o.Message != "nothing is wrong" {
		t.Errorf("operation %+v", o)
	}
}

// empty is a recoverer whose plan has no action.
type empty struct{ unmounter }

func (*empty) Plan(context.Context, processor.Request) (processor.Plan, error) {
	return processor.Plan{}, nil
}

func (*empty) Verify(context.Context, processor.Request, processor.Plan) (processor.Result, error) {
	return processor.Result{NoFault: true, Message: "nothing is wrong"}, nil
}

// inParts is a recoverer whose plan has one part for each mount, and of each the action and one after it.
type inParts struct {
	unmounter
	refused map[uint64]error
	// undone are the mounts that Verify was told of as not unmounted.
	undone []uint64
	parts  []int
}

func (r *inParts) Plan(ctx context.Context, q processor.Request) (processor.Plan, error) {
	p, err := r.unmounter.Plan(ctx, q)
	p.Parts = r.parts
	return p, err
}

func (r *inParts) Apply(ctx context.Context, q processor.Request, a fault.Action) (fault.Applied, error) {
	if err := r.refused[a.Mount.ID]; err != nil {
		return fault.Applied{}, err
	}
	return r.unmounter.Apply(ctx, q, a)
}

func (r *inParts) Verify(ctx context.Context, q processor.Request, p processor.Plan) (processor.Result, error) {
	r.undone = nil
	for i, a := range p.Actions {
		if p.Outcome(i).Undone {
			r.undone = append(r.undone, a.Mount.ID)
		}
	}
	return r.unmounter.Verify(ctx, q, p)
}

// TestPartsDoNotWaitForEachOther: what fails in one leaves the rest of that one undone, and what is proven of the others stays.
func TestPartsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	refused := processor.Stalled(errors.New("has changed"))
	for name, tc := range map[string]struct {
		parts   []int
		refused map[uint64]error
		undone  []uint64
		reason  string
	}{
		"the first part":       {[]int{2, 2}, map[uint64]error{1: refused}, []uint64{1, 2}, ReasonStalled},
		"the second part":      {[]int{2, 2}, map[uint64]error{4: refused}, []uint64{4}, ReasonStalled},
		"worth another try":    {[]int{1, 1, 2}, map[uint64]error{1: refused, 3: errBroken}, []uint64{1, 3, 4}, ReasonFailed},
		"one part":             {nil, map[uint64]error{3: refused}, []uint64{3, 4}, ReasonStalled},
		"numbers too small":    {[]int{1}, map[uint64]error{3: refused}, []uint64{3, 4}, ReasonStalled},
		"numbers too large":    {[]int{2, 3}, map[uint64]error{3: refused}, []uint64{3, 4}, ReasonStalled},
		"a number below zero":  {[]int{5, -1}, map[uint64]error{3: refused}, []uint64{3, 4}, ReasonStalled},
		"nothing is left over": {[]int{2, 2}, map[uint64]error{2: refused, 4: refused}, []uint64{2, 4}, ReasonStalled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newKernel(1, 2, 3, 4)
			recoverer := &inParts{unmounter: unmounter{kernel: n}, parts: tc.parts, refused: tc.refused}
			r := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, recoverer))
			if !slices.Equal(n.mounts, tc.undone) {
				t.Errorf("mounts that are left: %v, want %v", n.mounts, tc.undone)
			}
			o := r.Operations[0]
			if o.Phase != v1.OperationFailed || o.Reason != tc.reason {
				t.Errorf("operation %+v", o)
			}
			verified := len(tc.undone) < 4 && recoverer.proofs > 0
			if verified && !slices.Equal(recoverer.undone, tc.undone) {
				t.Errorf("verified without %v, want %v", recoverer.undone, tc.undone)
			}
			healed := slices.DeleteFunc(slices.Clone(o.Findings), func(f fault.Finding) bool { return !f.Healed })
			if verified != (len(healed) > 0) || verified && len(healed) != 4-len(tc.undone) {
				t.Errorf("healed %+v, verified %v", healed, verified)
			}
			if verified != (name == "the first part" || name == "worth another try" || name == "the second part") {
				t.Errorf("verified: %v", verified)
			}
		})
	}
}

// TestFilesAreForLaterOperations and not for the status.
func TestFilesAreForLaterOperations(t *testing.T) {
	t.Parallel()
	var seen map[string]string
	first := &fakeProcessor{run: func(context.Context, processor.Request) (processor.Result, error) {
		return processor.Result{Files: map[string]string{"table": "1 2 3"}, Values: map[string]string{"short": "x"}}, nil
	}}
	second := &fakeProcessor{run: func(_ context.Context, r processor.Request) (processor.Result, error) {
		seen = maps.Clone(r.Values)
		return processor.Result{}, nil
	}}
	dir := t.TempDir()
	for range 2 {
		r := mustRun(t, newRunner(t, dir), newJob(t, nil, first, second))
		if diff := cmp.Diff(map[string]string{"short": "x"}, r.Results); diff != "" {
			t.Errorf("values (-want +got):\n%s", diff)
		}
		files := r.Operations[0].Artifacts
		if len(files) != 1 || files[0].Key != "table" || files[0].SizeBytes != 5 {
			t.Fatalf("artifacts %+v", files)
		}
		if text, err := os.ReadFile(files[0].Path); err != nil || string(text) != "1 2 3" {
			t.Errorf("artifact %q, %v", text, err)
		}
	}
	if seen["table"] != "1 2 3" || seen["short"] != "x" {
		t.Errorf("the second operation was given %v", seen)
	}
}
