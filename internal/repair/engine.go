// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package repair makes plans and carries them out. It is the only way by which anything of a node is repaired.
//
// It owns the order of a repair: the lock, the rules, the journal, the action, the journal again, the proof. A Family
// knows one kind of fault, and Gate, Journal and Lock belong to the driver. The driver also retries, waits for approvals and for pods, and informs
// people. Execute can be called again after anything that may happen: it goes on from the journal, and does nothing twice.
//
// It knows no client, no network and no mount.
package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
)

// Engine makes plans and carries them out.
type Engine struct {
	// Family returns a family by its name.
	Family func(name string) (Family, bool)
	// Gate can hold repairs. Nil: nothing is held.
	Gate Gate
	// Lock keeps other programs of the node from repairs until release is called. Nil: there is no other.
	Lock func(ctx context.Context) (release func(), err error)
	// Evictor and Records change pods and records: no family has a client. Nil: no pod is evicted, and no record removed.
	Evictor Evictor
	Records Records
	// Await waits for the part of others in a repair. Nil: it is not waited for.
	Await func(ctx context.Context, r processor.Request, w *processor.Wait) (processor.Result, error)
	// Calls are those of the process. Nil: families are called in the goroutine of Execute.
	Calls *Calls
}

// Gate has the rules that hold repairs.
type Gate interface {
	// Check says why an action is held now, and changes nothing. It is empty if no rule forbids the action.
	Check(ctx context.Context, r processor.Request, a fault.Action) (why string, err error)
	// Take takes the repair of a part from the budgets, or says why not.
	Take(ctx context.Context, r processor.Request, p Part) (why string, err error)
	// Ended notes how an action has ended for which Take has taken a repair, if it has changed something or failed.
	Ended(ctx context.Context, r processor.Request, a fault.Action, err error)
}

// Journal is where a driver keeps how far the repair of a plan is. It outlives the process.
type Journal interface {
	// Announce returns once it is kept that an action is about to be done.
	Announce(ctx context.Context, action int) error
	// Note keeps how an action has ended.
	Note(ctx context.Context, e End) error
	// Verify keeps that the proof begins.
	Verify(ctx context.Context) error
	// Progress says of each action of the plan how far it is.
	Progress() []fault.Applied
}

// End is how an action has ended.
type End struct {
	Action  int
	Applied fault.Applied
	// Calls are the changing calls that were made.
	Calls []calls.Call
	// Err is nil if it was done.
	Err error
}

const (
	// gateRetry is the wait if it is not known whether a rule holds a repair.
	gateRetry = 5 * time.Second
	// maxReasons bounds the reasons for which actions are held, and the errors of parts.
	maxReasons, maxErrors = 10, 5
)

// errHeld is the error of an action that a rule holds.
var errHeld = errors.New("held by policy")

// Plan has a plan made, and changes nothing.
func (e *Engine) Plan(ctx context.Context, r processor.Request, plan func(context.Context, processor.Request) (Plan, error)) (Plan, error) {
	p, err := Call(ctx, e.Calls, r, func(ctx context.Context) (Plan, error) { return plan(ctx, r) })
	if err != nil {
		return p, fmt.Errorf("planning: %w", err)
	}
	return p, nil
}

// Held asks the gate about the actions of a plan that is not to be carried out: why some are held, and how many. If it does not answer,
// that is a reason, too, and the action does not count as held.
func (e *Engine) Held(ctx context.Context, r processor.Request, p *Plan) (reasons []string, count int) {
	if e.Gate == nil {
		return nil, 0
	}
	for _, part := range p.Parts {
		for _, a := range part.Actions {
			why, err := e.Gate.Check(ctx, part.For(r), a)
			if why != "" {
				count++
			}
			if err != nil {
				why = err.Error()
			}
			if why != "" && !slices.Contains(reasons, why) && len(reasons) < maxReasons {
				reasons = append(reasons, why)
			}
		}
	}
	return reasons, count
}

// Execute carries out the rest of a plan, and proves it. A failure in one part does not keep the others from being done and
// proven. The result then has the findings of all parts.
func (e *Engine) Execute(ctx context.Context, r processor.Request, p *Plan, j Journal) (processor.Result, error) {
	var failed error
	parts, release := p.partsAt(j.Progress()), func() {}
	if e.Lock != nil && slices.ContainsFunc(parts, func(p Part) bool { return !p.isDone() }) {
		unlock, err := e.Lock(ctx)
		if err != nil {
			failed = fmt.Errorf("waiting for another program that repairs (create another Diagnosis when it has ended): %w", wrapTimeout(ctx, err))
			parts = nil
		} else {
			release = sync.OnceFunc(unlock)
		}
	}
	defer release()
	first := 0
	for _, part := range parts {
		failure, err := e.applyPart(ctx, part.For(r), part, first, j)
		if err != nil { // the journal cannot be written
			return processor.Result{}, err
		}
		if failed, first = joinFailures(failed, failure), first+len(part.Actions); failure != nil && ctx.Err() != nil {
			return processor.Result{}, failure
		}
	}
	release()
	parts = p.partsAt(j.Progress())
	if failed != nil && (ctx.Err() != nil || !slices.ContainsFunc(parts, Part.isDone)) {
		return processor.Result{}, failed
	}
	if err := j.Verify(ctx); err != nil {
		return processor.Result{}, err
	}
	result, err := e.prove(ctx, r, parts)
	for key, value := range p.Values {
		result.Values[key] = value
	}
	result.Message = p.Message
	return result, joinFailures(failed, err)
}

// applyPart does the actions of a part that are left, up to the first that fails. The first of the part has this index in the plan.
func (e *Engine) applyPart(ctx context.Context, r processor.Request, p Part, first int, j Journal) (failed, err error) {
	if p.isDone() {
		return nil, nil
	}
	family, err := e.family(p)
	if err != nil {
		return err, nil
	}
	// If there is no room for a call, that shows here: before a budget is used.
	apply, err := Call(ctx, e.Calls, r, func(context.Context) (Apply, error) { return family.Open(), nil })
	if err != nil {
		return err, nil
	}
	taken := false
	for i, a := range p.Actions {
		if !p.Applied[i].Undone {
			continue
		}
		if ctx.Err() != nil {
			return wrapTimeout(ctx, context.Cause(ctx)), nil
		}
		end := End{Action: first + i}
		if end.Err = e.acquire(ctx, r, p, a, &taken); end.Err == nil {
			if err := j.Announce(ctx, end.Action); err != nil {
				return nil, err
			}
			log := &calls.Log{}
			end.Applied, end.Err = Call(calls.With(ctx, log), e.Calls, r, func(ctx context.Context) (fault.Applied, error) {
				done, err := apply(ctx, r, a)
				switch {
				case err != nil, done.Already:
				case a.Kind == fault.Evict && a.Pod != nil:
					return e.evict(ctx, *a.Pod)
				case a.Kind == fault.RemoveContainerRecord && e.Records != nil:
					done.Message = e.Records.RemoveRecord(ctx, r, a)
				}
				return done, err
			})
			end.Calls = log.All()
		}
		if end.Err != nil && errors.Is(ctx.Err(), context.Canceled) {
			return end.Err, nil // not a failure of the action
		}
		if err := j.Note(ctx, end); err != nil {
			return nil, err
		}
		if failed := e.settle(ctx, r, a, end, taken); failed != nil {
			return failed, nil
		}
	}
	return nil, nil
}

// settle notes the end of an action with the gate, if the repair of its part was taken, and returns its failure.
func (e *Engine) settle(ctx context.Context, r processor.Request, a fault.Action, end End, taken bool) error {
	_, waits := errors.AsType[*processor.WaitingError](end.Err) // such as for a PodDisruptionBudget, which is no failure
	if taken && !end.Applied.Already && !waits && !processor.IsHeld(end.Err) && ctx.Err() == nil {
		e.Gate.Ended(ctx, r, a, end.Err)
	}
	if end.Err == nil || processor.IsHeld(end.Err) { // a rule is about the fault, not about one mount
		return end.Err
	}
	return fmt.Errorf("%s of %q: %w", a.Kind, a.Target, end.Err)
}

// acquire asks the gate right before an action, since rules change, and takes the repair of the part once.
func (e *Engine) acquire(ctx context.Context, r processor.Request, p Part, a fault.Action, taken *bool) error {
	if e.Gate == nil {
		return nil
	}
	why, err := e.Gate.Check(ctx, r, a)
	if why == "" && err == nil && !*taken {
		why, err = e.Gate.Take(ctx, r, p)
		*taken = why == "" && err == nil
	}
	switch {
	case err != nil:
		return &processor.WaitingError{Err: err, After: gateRetry}
	case why != "":
		return processor.Held(fmt.Errorf("%w: %s", errHeld, why))
	}
	return nil
}

// prove has each part proven, all at once: most of it is to wait for containers. A part that was not done is not verified, and its faults
// stay. The first of several values of one key is kept.
func (e *Engine) prove(ctx context.Context, r processor.Request, parts []Part) (processor.Result, error) {
	proofs, errs := make([]processor.Result, len(parts)), make([]error, len(parts))
	var wait sync.WaitGroup
	for i, p := range parts {
		prove := func() { proofs[i], errs[i] = e.provePart(ctx, p.For(r), p) }
		if e.Calls == nil {
			prove() // in the namespace that the caller is in
		} else {
			wait.Go(prove)
		}
	}
	wait.Wait()
	result := processor.Result{Values: map[string]string{}}
	for i, proof := range proofs {
		if errs[i] != nil && len(parts) > 1 {
			errs[i] = fmt.Errorf("%s: %w", parts[i].Family, errs[i])
		}
		result.Findings = append(result.Findings, proof.Findings...)
		for key, value := range proof.Values {
			if _, ok := result.Values[key]; !ok {
				result.Values[key] = value
			}
		}
	}
	if err := JoinErrors(errs); err != nil {
		return result, fmt.Errorf("verifying: %w", err)
	}
	return result, nil
}

func (e *Engine) provePart(ctx context.Context, r processor.Request, p Part) (processor.Result, error) {
	unproven := processor.Result{Findings: p.Findings}
	if !p.isDone() {
		return unproven, nil
	}
	family, err := e.family(p)
	if err != nil {
		return unproven, err
	}
	p.Findings = slices.Clone(p.Findings) // a proof that is left behind may still write to them
	proof, err := Call(ctx, e.Calls, r, func(ctx context.Context) (processor.Result, error) { return family.Verify(ctx, r, p) })
	if err == nil && proof.Wait != nil && e.Await != nil {
		proof, err = e.Await(ctx, r, proof.Wait)
	}
	if err != nil {
		return unproven, err
	}
	return proof, nil
}

// family returns the family of a part. A plan of another release may name an unknown family.
func (e *Engine) family(p Part) (Family, error) {
	f, ok := e.Family(p.Family)
	if !ok {
		return nil, processor.Stalled(fmt.Errorf("read plan: there is no family %q", p.Family))
	}
	return f, nil
}

// isDone reports whether no action of the part is left to do.
func (p Part) isDone() bool {
	return !slices.ContainsFunc(p.Applied, func(a fault.Applied) bool { return a.Undone })
}
