// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// fakeProcessor is a processor made of a function. It counts its calls, and keeps the values that it was given last.
type fakeProcessor struct {
	name string
	run  func(ctx context.Context, r processor.Request) (processor.Result, error)

	mu    sync.Mutex
	calls int
	at    []time.Time
	seen  map[string]string
}

func (l *fakeProcessor) Name() string { return l.name }

func (l *fakeProcessor) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	l.mu.Lock()
	l.calls++
	l.at = append(l.at, time.Now())
	l.seen = maps.Clone(r.Values)
	l.mu.Unlock()
	return l.run(ctx, r)
}

// as is the step of a world that has this name.
func (l *fakeProcessor) as(name string) Step {
	l.name = name
	return Step{Processor: l}
}

// returns is a fakeProcessor that answers alike each time.
func returns(result processor.Result, err error) *fakeProcessor {
	return &fakeProcessor{run: func(context.Context, processor.Request) (processor.Result, error) { return result, err }}
}

func gives(key, value string) *fakeProcessor {
	return returns(processor.Result{Values: map[string]string{key: value}}, nil)
}

func fails(err error) *fakeProcessor { return returns(processor.Result{}, err) }

func declines(why string) *fakeProcessor { return returns(processor.Result{NotApplicable: why}, nil) }

// waits is a fakeProcessor that calls fn and then goes on until its context ends.
func waits(fn func()) *fakeProcessor {
	return &fakeProcessor{run: func(ctx context.Context, _ processor.Request) (processor.Result, error) {
		fn()
		<-ctx.Done()
		return processor.Result{}, ctx.Err()
	}}
}

var errBroken = errors.New("broken")

// kernel is what outlives a process: the mounts of a node, and how often each was unmounted.
type kernel struct {
	mounts  []uint64
	effects map[uint64]int
}

func newKernel(mounts ...uint64) *kernel { return &kernel{mounts: mounts, effects: map[uint64]int{}} }

// stale is a finding about one mount.
func stale(id uint64, healed bool) fault.Finding {
	return fault.Finding{
		Code: "StaleSubPath", Pod: fault.Pod{Namespace: "default", Name: "p", UID: "pod-uid"}, Container: "c", Volume: "v",
		Mount: fault.Mount{ID: id, Root: "/a//deleted", Point: fmt.Sprint("/m/", id)}, Healed: healed, Evidence: []string{"nlink 0"},
	}
}

// unmounter is a recoverer that unmounts every mount that the kernel has when it plans. The fail functions, if they are set,
// may fail a call by its number.
type unmounter struct {
	kernel                 *kernel
	failApply, failVerify  func(call int) error
	already                bool // whether others unmount them before it does
	plans, applies, proofs int
	proving                sync.Mutex // parts are proven at once
}

func (*unmounter) Name() string { return "unmounter" }

func (u *unmounter) Plan(context.Context, processor.Request) (repair.Part, error) {
	u.plans++
	if len(u.kernel.mounts) == 0 {
		return repair.Part{
			NotApplicable: "nothing is mounted", Gone: []fault.Absence{{Code: "StaleSubPath", Pod: fault.Pod{Namespace: "default", Name: "p"}}},
		}, nil
	}
	p := repair.Part{Notes: map[string]string{"result": "Succeesfully umount /m/7 on host"}}
	for _, id := range u.kernel.mounts {
		p.Actions = append(p.Actions, fault.Action{
			Kind: "Unmount", Target: fmt.Sprint("/m/", id), Mount: &fault.Mount{ID: id}, For: []fault.Key{{Code: fault.StaleSubPath}}, Safety: "nobody reads it", Loss: "nothing",
			Lossless: true,
		})
		p.Findings = append(p.Findings, stale(id, false))
	}
	return p, nil
}

func (u *unmounter) Open() repair.Apply { return u.apply }

func (u *unmounter) apply(_ context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
	u.applies++
	if u.failApply != nil {
		if err := u.failApply(u.applies); err != nil {
			return fault.Applied{}, err
		}
	}
	if i := slices.Index(u.kernel.mounts, a.Mount.ID); i >= 0 {
		u.kernel.mounts = slices.Delete(u.kernel.mounts, i, i+1)
		u.kernel.effects[a.Mount.ID]++
	}
	if u.already {
		return fault.AlreadySo("was gone already"), nil
	}
	return fault.Applied{Message: "unmounted " + a.Target}, nil
}

func (u *unmounter) Verify(_ context.Context, _ processor.Request, p repair.Part) (processor.Result, error) {
	u.proving.Lock()
	defer u.proving.Unlock()
	u.proofs++
	if u.failVerify != nil {
		if err := u.failVerify(u.proofs); err != nil {
			return processor.Result{}, err
		}
	}
	for i := range p.Findings {
		p.Findings[i].Healed = !slices.Contains(u.kernel.mounts, p.Findings[i].Mount.ID)
	}
	return processor.Result{Values: map[string]string{"recover.kubernetes.subpath_remount.result": p.Notes["result"]}, Findings: p.Findings}, nil
}

// atCall fails the n-th call.
func atCall(n int, err error) func(int) error {
	return func(call int) error {
		if call == n {
			return err
		}
		return nil
	}
}

// always fails every call with the error, which no retry helps.
func always(err error) func(int) error { return func(int) error { return processor.Stalled(err) } }

// job makes a job of a chain of steps, or of the graph that edges describe.
func newJob(t testing.TB, edges [][]int32, steps ...any) job {
	t.Helper()
	nodes := make([]graph.Node, len(steps)+1)
	ops := map[int32]operation{}
	for i := range nodes {
		nodes[i].ID = int32(i)
		if edges != nil {
			nodes[i].To = edges[i]
		} else if i < len(steps) {
			nodes[i].To = []int32{int32(i + 1)}
		}
		if i == 0 {
			continue
		}
		op := operation{Name: fmt.Sprintf("op-%d", i), Timeout: time.Minute}
		switch s := steps[i-1].(type) {
		case processor.Processor:
			op.Step.Processor = s
		case repair.Family:
			op.Step.Family = s
		case repair.Planner:
			op.Step.Planner = s
		}
		nodes[i].Operation = op.Name
		ops[int32(i)] = op
	}
	g, err := graph.New(nodes)
	must(t, err)
	return job{
		Request: processor.Request{
			Diagnosis: processor.Diagnosis{UID: "uid-1", Namespace: "default", Name: "d"},
			Node:      "node-1",
			Values:    map[string]string{"param.x": "1"},
		},
		Graph: g, Operations: ops, Deadline: time.Now().Add(time.Hour), MaxResults: v1.MaxResultsBytes,
	}
}

func newRunner(t testing.TB, dir string, families ...repair.Family) *Runner {
	t.Helper()
	registry := &Registry{steps: map[string]Step{}}
	for _, f := range families {
		registry.steps[f.Name()] = Step{Family: f}
	}
	r, err := New(Options{DataRoot: dir, Registry: registry})
	must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

// fakeGate is a Gate that holds actions by their mounts, and counts what is taken and what has ended.
type fakeGate struct {
	why          map[uint64]string
	err          map[uint64]error
	taken, ended int
}

func (g *fakeGate) Check(_ context.Context, _ processor.Request, a fault.Action) (string, error) {
	return g.why[a.Mount.ID], g.err[a.Mount.ID]
}

func (g *fakeGate) Take(context.Context, processor.Request, repair.Part) (string, error) {
	g.taken++
	return "", nil
}

func (g *fakeGate) Ended(context.Context, processor.Request, fault.Action, error) { g.ended++ }

// run runs a job to its end.
func (r *Runner) run(ctx context.Context, j job) (report, error) {
	x, err := r.begin(j)
	if err != nil {
		return report{}, err
	}
	return x.paths(ctx)
}

func mustRun(t testing.TB, r *Runner, j job) report {
	t.Helper()
	report, err := r.run(t.Context(), j)
	must(t, err)
	return report
}

// outcomes are the outcomes by node id.
func outcomes(r report) map[int32]v1.OperationPhase {
	all := map[int32]v1.OperationPhase{}
	for _, o := range r.Operations {
		all[o.ID] = o.Phase
	}
	return all
}

var must = kerneltest.Must
