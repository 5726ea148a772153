// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
)

// look is a processor made of a function. It counts its calls.
type look struct {
	run func(ctx context.Context, r processor.Request) (processor.Result, error)

	mu    sync.Mutex
	calls int
	at    []time.Time
}

func (l *look) Name() string { return "look" }

func (l *look) Run(ctx context.Context, r processor.Request) (processor.Result, error) {
	l.mu.Lock()
	l.calls++
	l.at = append(l.at, time.Now())
	l.mu.Unlock()
	return l.run(ctx, r)
}

// gives is a look that succeeds with one value.
func gives(key, value string) *look {
	return &look{run: func(context.Context, processor.Request) (processor.Result, error) {
		return processor.Result{Values: map[string]string{key: value}}, nil
	}}
}

// fails is a look that fails with an error each time.
func fails(err error) *look {
	return &look{run: func(context.Context, processor.Request) (processor.Result, error) {
		return processor.Result{}, err
	}}
}

func declines(why string) *look {
	return &look{run: func(context.Context, processor.Request) (processor.Result, error) {
		return processor.Result{NotApplicable: why}, nil
	}}
}

var errBroken = errors.New("broken")

// node is what a kernel is to a recoverer: mounts by identity. It outlives crashes of the process.
type node struct {
	mounts  []uint64
	effects map[uint64]int // how often each was unmounted
}

// repairs is a recoverer that unmounts every mount that the node has when it plans. The fail functions, where they are
// set, may fail a call by its number.
type repairs struct {
	node                *node
	failApply           func(call int) error
	failVerify          func(call int) error
	applies, plans, ver int
}

func (r *repairs) Name() string { return "repairs" }

func (r *repairs) Plan(context.Context, processor.Request) (processor.Plan, error) {
	r.plans++
	if len(r.node.mounts) == 0 {
		return processor.Plan{NotApplicable: "nothing is mounted"}, nil
	}
	var p processor.Plan
	for _, id := range r.node.mounts {
		p.Actions = append(p.Actions, fault.Action{Kind: "Unmount", Target: fmt.Sprint("/m/", id), Mount: &fault.Mount{ID: id}})
		p.Findings = append(p.Findings, fault.Finding{Code: "StaleSubPath", Mount: fault.Mount{ID: id}})
	}
	p.Notes = map[string]string{"mounts": fmt.Sprint(len(p.Actions))}
	return p, nil
}

func (r *repairs) Apply(_ context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
	r.applies++
	if r.failApply != nil {
		if err := r.failApply(r.applies); err != nil {
			return fault.Applied{}, err
		}
	}
	if i := slices.Index(r.node.mounts, a.Mount.ID); i >= 0 {
		r.node.mounts = slices.Delete(r.node.mounts, i, i+1)
		r.node.effects[a.Mount.ID]++
	}
	return fault.Applied{Message: "unmounted " + a.Target}, nil
}

func (r *repairs) Verify(_ context.Context, _ processor.Request, p processor.Plan) (processor.Result, error) {
	r.ver++
	if r.failVerify != nil {
		if err := r.failVerify(r.ver); err != nil {
			return processor.Result{}, err
		}
	}
	for i := range p.Findings {
		p.Findings[i].Healed = !slices.Contains(r.node.mounts, p.Findings[i].Mount.ID)
	}
	return processor.Result{Values: map[string]string{"healed": p.Notes["mounts"]}, Findings: p.Findings}, nil
}

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
		case processor.Recoverer:
			op.Step.Recoverer = s
		}
		nodes[i].Operation = op.Name
		ops[int32(i)] = op
	}
	g, err := graph.New(nodes)
	if err != nil {
		t.Fatal(err)
	}
	return job{
		Request: processor.Request{
			Diagnosis: processor.Diagnosis{UID: "uid-1", Namespace: "default", Name: "d"},
			Node:      "node-1",
			Values:    map[string]string{"param.x": "1"},
		},
		Graph: g, Operations: ops, Deadline: time.Now().Add(time.Hour), MaxResults: v1.MaxResultsBytes,
	}
}

func newRunner(t testing.TB, dir string) *Runner {
	t.Helper()
	r, err := New(Options{DataRoot: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func mustRun(t testing.TB, r *Runner, j job) report {
	t.Helper()
	report, err := r.run(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
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
