// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package repairtest carries out plans in tests, with a journal in memory.
package repairtest

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// NewEngine returns an engine of these families.
func NewEngine(families ...repair.Family) *repair.Engine {
	calls := repair.NewCalls()
	return &repair.Engine{
		Await: func(ctx context.Context, r processor.Request, w *processor.Wait) (processor.Result, error) {
			return repair.Call(ctx, calls, r, w.Await)
		},
		Family: func(name string) (repair.Family, bool) {
			for _, f := range families {
				if f.Name() == name {
					return f, true
				}
			}
			return nil, false
		},
		Calls: calls,
	}
}

// Journal is a repair.Journal in memory.
type Journal struct {
	// Hook, if it is set, is called before and after each record.
	Hook func(record string)
	// Errs are those of actions, by index.
	Errs    map[int]error
	applied []fault.Applied
}

// NewJournal returns one for a plan of which nothing is done.
func NewJournal(p repair.Plan) *Journal {
	j := &Journal{Errs: map[int]error{}}
	for range p.Actions() {
		j.applied = append(j.applied, fault.Applied{Undone: true})
	}
	return j
}

// Apply has one action of a family done, as Execute does it.
func Apply(ctx context.Context, e *repair.Engine, r processor.Request, f repair.Family, a fault.Action) (fault.Applied, error) {
	e.Family = func(string) (repair.Family, bool) { return unproven{f}, true }
	p := repair.Plan{Parts: []repair.Part{{Family: f.Name(), Actions: []fault.Action{a}}}}
	j := NewJournal(p)
	if _, err := e.Execute(ctx, r, &p, j); err != nil && j.Errs[0] == nil {
		return fault.Applied{}, err
	}
	if j.Errs[0] != nil {
		return fault.Applied{}, j.Errs[0]
	}
	return j.applied[0], nil
}

// unproven is a family that proves nothing.
type unproven struct{ repair.Family }

func (unproven) Verify(context.Context, processor.Request, repair.Part) (processor.Result, error) {
	return processor.Result{}, nil
}

// Announce implements repair.Journal.
func (j *Journal) Announce(context.Context, int) error {
	j.record("announce", func() {})
	return nil
}

// Note implements repair.Journal.
func (j *Journal) Note(_ context.Context, e repair.End) error {
	j.record("note", func() {
		if j.Errs[e.Action] = e.Err; e.Err == nil {
			j.applied[e.Action] = e.Applied
		}
	})
	return nil
}

// Verify implements repair.Journal.
func (j *Journal) Verify(context.Context) error {
	j.record("verify", func() {})
	return nil
}

// Progress implements repair.Journal.
func (j *Journal) Progress() []fault.Applied { return j.applied }

func (j *Journal) record(kind string, write func()) {
	hook := j.Hook
	if hook == nil {
		hook = func(string) {}
	}
	hook("before " + kind)
	write()
	hook("after " + kind)
}
