// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
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
	j := newJob(t, nil, empty{}, gives("after", "x"))
	j.PlanOnly = true
	r := mustRun(t, newRunner(t, t.TempDir()), j)
	if !r.Succeeded || r.Planned || r.Results["after"] != "x" || r.Results["said"] != "x" {
		t.Errorf("report %+v", r)
	}
	if o := r.Operations[0]; o.Message != "nothing is wrong" {
		t.Errorf("operation %+v", o)
	}
}

// empty is a planner whose plan has no action.
type empty struct{}

func (empty) Name() string { return "empty" }

func (empty) Plan(context.Context, processor.Request) (repair.Plan, error) {
	return repair.Plan{Message: "nothing is wrong", Values: map[string]string{"said": "x"}}, nil
}

// inParts is a family of the unmounter's that refuses mounts.
type inParts struct {
	unmounter
	refused map[uint64]error
	parts   []int
}

func (*inParts) Name() string { return "in parts" }

func (r *inParts) Open() repair.Apply {
	return func(ctx context.Context, q processor.Request, a fault.Action) (fault.Applied, error) {
		if err := r.refused[a.Mount.ID]; err != nil {
			return fault.Applied{}, err
		}
		return r.apply(ctx, q, a)
	}
}

// planner plans so many actions in each part.
type planner struct{ *inParts }

func (planner) Name() string { return "unmounter" }

func (r planner) Plan(ctx context.Context, q processor.Request) (repair.Plan, error) {
	whole, err := r.unmounter.Plan(ctx, q)
	plan := repair.PlanOf(r.inParts.Name(), whole)
	if err != nil || len(r.parts) == 0 {
		return plan, err
	}
	plan.Parts = nil
	for _, n := range r.parts {
		part := whole
		part.Family, part.Actions, part.Findings = r.inParts.Name(), whole.Actions[:n], whole.Findings[:n]
		whole.Actions, whole.Findings = whole.Actions[n:], whole.Findings[n:]
		plan.Parts = append(plan.Parts, part)
	}
	return plan, nil
}

// TestPartsDoNotWaitForEachOther: what fails in one leaves the rest of that one undone, and what is proven of the others stays.
func TestPartsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	refused := processor.Stalled(errors.New("has changed"))
	for name, tc := range map[string]struct {
		parts   []int
		refused map[uint64]error
		undone  []uint64
		healed  int // 0: nothing is verified
		reason  string
	}{
		"the first part":       {[]int{2, 2}, map[uint64]error{1: refused}, []uint64{1, 2}, 2, reasonStalled},
		"the second part":      {[]int{2, 2}, map[uint64]error{4: refused}, []uint64{4}, 2, reasonStalled},
		"worth another try":    {[]int{1, 1, 2}, map[uint64]error{1: refused, 3: errBroken}, []uint64{1, 3, 4}, 1, ReasonFailed},
		"one part":             {nil, map[uint64]error{3: refused}, []uint64{3, 4}, 0, reasonStalled},
		"nothing is left over": {[]int{2, 2}, map[uint64]error{2: refused, 4: refused}, []uint64{2, 4}, 0, reasonStalled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newKernel(1, 2, 3, 4)
			family := &inParts{unmounter: unmounter{kernel: n}, parts: tc.parts, refused: tc.refused}
			r := mustRun(t, newRunner(t, t.TempDir(), family), newJob(t, nil, planner{family}))
			if !slices.Equal(n.mounts, tc.undone) {
				t.Errorf("mounts that are left: %v, want %v", n.mounts, tc.undone)
			}
			o := r.Operations[0]
			if o.Phase != v1.OperationFailed || o.Reason != tc.reason {
				t.Errorf("operation %+v", o)
			}
			healed := slices.DeleteFunc(slices.Clone(o.Findings), func(f fault.Finding) bool { return !f.Healed })
			if len(healed) != tc.healed || (family.proofs > 0) != (tc.healed > 0) || len(o.Findings) != 4 {
				t.Errorf("%d proofs, findings %+v, want %d healed", family.proofs, o.Findings, tc.healed)
			}
		})
	}
}

// TestFilesAreForLaterOperations and not for the status.
func TestFilesAreForLaterOperations(t *testing.T) {
	t.Parallel()
	first := returns(processor.Result{Files: map[string]string{"table": "1 2 3"}, Values: map[string]string{"short": "x"}}, nil)
	dir, second := t.TempDir(), returns(processor.Result{}, nil)
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
	if second.seen["table"] != "1 2 3" || second.seen["short"] != "x" {
		t.Errorf("the second operation was given %v", second.seen)
	}
}

// TestStackOfARepair bounds what stands between a Diagnosis and the action of a family: the calls of this package, and those of the engine.
func TestStackOfARepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var stack []byte
	w.replace(Step{Family: &unmounter{kernel: w.kernel, failApply: func(int) error {
		stack = make([]byte, 1<<20)
		stack = stack[:runtime.Stack(stack, true)]
		return nil
	}}})
	w.run(t, diagnosis())
	chain := callChain(string(stack))
	engine := slices.IndexFunc(chain, func(name string) bool { return strings.HasSuffix(name, "repair.(*Engine).Execute") })
	own := slices.DeleteFunc(slices.Clone(chain[max(engine, 0):]), func(name string) bool { return !strings.Contains(name, "/internal/repair.") })
	t.Logf("%d calls of the pipeline, %d of the engine:\n%s", engine, len(own), strings.Join(chain, "\n"))
	if engine < 1 || engine > 9 || len(own) > 6 {
		t.Errorf("%d calls of the pipeline, at most 9; %d of the engine, at most 6", engine, len(own))
	}
}

// callChain lists the functions of all goroutines from Runner.Run to the action of a family, the outermost first: each goroutine says which
// one has made it.
func callChain(stacks string) (chain []string) {
	goroutines := map[string]string{}
	for _, one := range strings.Split(stacks, "\n\n") {
		id, _, _ := strings.Cut(strings.TrimPrefix(one, "goroutine "), " ")
		goroutines[id] = one
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(stacks, "goroutine "), " ")
	for one := goroutines[id]; one != ""; one = goroutines[id] {
		id = ""
		for _, line := range strings.Split(one, "\n")[1:] {
			if made, by, ok := strings.Cut(line, " in goroutine "); ok && strings.HasPrefix(made, "created by ") {
				id, _, _ = strings.Cut(by, " ")
				break
			}
			if !strings.HasPrefix(line, "kubediag.org/") {
				continue
			}
			chain = append(chain, line[:strings.LastIndex(line, "(")])
			if strings.HasSuffix(chain[len(chain)-1], "(*Runner).Run") {
				id = ""
				break
			}
		}
	}
	slices.Reverse(chain)
	return chain
}
