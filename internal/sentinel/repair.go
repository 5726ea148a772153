// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Repair is a repair that the sentinel has tried.
type Repair struct {
	// Fault is what was found.
	Fault fault.Finding
	// Action is what was done about it.
	Action fault.Action
	// Ended is when it was over.
	Ended time.Time
	// Calls are the changing calls that were made, with their results.
	Calls []calls.Call
	// Proof says for people how the result was verified.
	Proof string
	// Err is nil if the repair was verified.
	Err error

	pod *corev1.Pod // of the fault
	// left is set if nothing was changed: another process was faster, or the mount was left alone. isProven is set if the engine has had it
	// verified.
	left, isProven bool
}

// isRefused reports whether a repair was left alone at the last moment: another process was faster, or the mount has changed.
func isRefused(err error) bool {
	_, refused := errors.AsType[*subpath.RefusedError](err)
	return refused && !errors.Is(err, sys.EINVAL) || errors.Is(err, volume.ErrRefused)
}

// attempt has the engine carry out repairs, each of which is a part of the plan. It is the family of the parts, and the gate.
type attempt struct {
	sentinel *Sentinel
	repairs  []*Repair
	// apply does the action of a repair, and verify proves one that was done. All proofs come after all actions.
	apply  func(ctx context.Context, repair int) (fault.Applied, error)
	verify func(ctx context.Context, repair int) (proof string, err error)
	// hold says why an action may not be begun now. Nil: each may.
	hold func(a fault.Action) (why string)
	// take takes a repair from the rate limit of its place, if there is one left.
	take func(repair int) bool
}

// run carries the repairs out. Each has its own error; that of run says why one could not be written down, and then no other begins.
func (a *attempt) run(ctx context.Context) error {
	plan, journal := repair.Plan{}, journal{of: a}
	for _, r := range a.repairs {
		plan.Parts = append(plan.Parts, repair.Part{Family: a.Name(), Actions: []fault.Action{r.Action}, Findings: []fault.Finding{r.Fault}})
		journal.progress = append(journal.progress, fault.Applied{Undone: true})
	}
	engine := repair.Engine{Family: func(string) (repair.Family, bool) { return a, true }, Gate: a}
	_, _ = engine.Execute(ctx, processor.Request{}, &plan, &journal)
	for i, r := range a.repairs {
		switch {
		case r.left:
			a.sentinel.Observer.Left(*r)
		case r.Ended.IsZero(), r.Err != nil, r.isProven:
		case ctx.Err() != nil: // the next process finds out
			r.Ended = time.Time{}
		default: // another one could not be written down
			r.Proof, r.Err = a.verify(ctx, i)
		}
	}
	return journal.failed
}

// find returns the repair that has an action.
func (a *attempt) find(action fault.Action) int {
	return slices.IndexFunc(a.repairs, func(r *Repair) bool { return *r.Action.Mount == *action.Mount })
}

// Name implements repair.Family.
func (*attempt) Name() string { return "sentinel" }

// Plan implements repair.Family: the watchers have planned from what they have seen just now.
func (*attempt) Plan(context.Context, processor.Request) (repair.Part, error) {
	return repair.Part{}, nil
}

// Open implements repair.Family.
func (a *attempt) Open() repair.Apply {
	return func(ctx context.Context, _ processor.Request, action fault.Action) (fault.Applied, error) {
		return a.apply(ctx, a.find(action))
	}
}

// Verify implements repair.Family.
func (a *attempt) Verify(ctx context.Context, _ processor.Request, p repair.Part) (processor.Result, error) {
	i := a.find(p.Actions[0])
	r := a.repairs[i]
	r.Proof, r.Err = a.verify(ctx, i)
	r.isProven = true
	return processor.Result{}, r.Err
}

// Check implements repair.Gate. The modes are looked at before a repair is planned.
func (a *attempt) Check(_ context.Context, _ processor.Request, action fault.Action) (why string, err error) {
	if a.hold != nil {
		why = a.hold(action)
	}
	return why, nil
}

// Take implements repair.Gate.
func (a *attempt) Take(ctx context.Context, _ processor.Request, p repair.Part) (why string, err error) {
	switch i := a.find(p.Actions[0]); {
	case !a.take(i):
		why = "this place was repaired too often"
	case !a.sentinel.Guard.Acquire(ctx, p.Findings[0], a.repairs[i].pod):
		why = "the policies do not allow it now"
	}
	return why, nil
}

// Ended implements repair.Gate.
func (a *attempt) Ended(_ context.Context, _ processor.Request, action fault.Action, err error) {
	if !isRefused(err) {
		a.sentinel.Guard.Ended(action.Key(), a.repairs[a.find(action)].Fault.Pod, err)
	}
}

// journal keeps how far an attempt is.
type journal struct {
	of       *attempt
	progress []fault.Applied
	failed   error
}

// Announce implements repair.Journal.
func (j *journal) Announce(_ context.Context, action int) error {
	j.failed = j.of.sentinel.Observer.Begin(*j.of.repairs[action])
	return j.failed
}

// Note implements repair.Journal.
func (j *journal) Note(_ context.Context, e repair.End) error {
	if processor.IsHeld(e.Err) {
		return nil
	}
	r := j.of.repairs[e.Action]
	r.Ended, r.Calls, r.Err, r.left = time.Now(), e.Calls, e.Err, e.Applied.Already || isRefused(e.Err)
	if e.Err == nil {
		j.progress[e.Action] = e.Applied
	}
	return nil
}

// Verify implements repair.Journal.
func (*journal) Verify(context.Context) error { return nil }

// Progress implements repair.Journal.
func (j *journal) Progress() []fault.Applied { return j.progress }

// begunFor returns the repairs of an earlier process that the watcher of a source has made.
func (s *Sentinel) begunFor(from fault.Search) (all []Repair) {
	for _, r := range s.Begun {
		if slices.Contains(fault.Known().FoundBy(from), r.Fault.Code) {
			all = append(all, r)
		}
	}
	return all
}

// reportBegun reports a repair of an earlier process. If err says that it is not done, its fault is found as any other is.
func (s *Sentinel) reportBegun(r Repair, proof string, err error) {
	if err != nil {
		s.Observer.Left(r)
		return
	}
	r.Ended, r.Proof = time.Now(), proof+"; an earlier process of the sentinel has begun this repair"
	s.Observer.Repaired(r)
}

// bindIsGone is the proof of the repair of a bind.
const bindIsGone = "the mount table shows that this mount is gone"

// settleBegun finds out how the repairs have ended that an earlier process has begun.
func (w *bindWatcher) settleBegun(ctx context.Context) error {
	if len(w.memory.begun) == 0 {
		return nil
	}
	return w.node.Do(ctx, func() error {
		ns, err := mountns.Self()
		if err != nil {
			return err
		}
		for _, r := range w.memory.begun {
			err := subpath.Verify(w.node, w.sentinel.Pods.PodByUID(r.Fault.Pod.UID), r.Action, nil)
			if errors.Is(err, subpath.ErrStaleAgain) {
				err = nil
			}
			if r.Action.Mount.Namespace != ns.Inode {
				err = fmt.Errorf("the kubelet is in %s now", ns)
			}
			w.sentinel.reportBegun(r, bindIsGone, err)
		}
		w.memory.begun = nil
		return nil
	})
}
