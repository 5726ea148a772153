// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// comparePods orders pods by name.
func comparePods(a, b processor.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Verify has each recoverer prove its own part, all at once: most of it is to wait for containers. A part that was not
// done is not verified, and its faults stay.
func (h *Recoverer) Verify(ctx context.Context, request processor.Request, p processor.Plan) (processor.Result, error) {
	var state planState
	if err := p.LoadState(&state); err != nil {
		return processor.Result{}, err
	}
	proofs, err := h.splitPlan(p, state)
	if err != nil {
		return processor.Result{}, err
	}
	runConcurrently(proofs, func(one *partProof) { one.verifyPart(ctx, request) })
	result := processor.Result{Values: map[string]string{}, Message: state.refusalMessage()}
	var errs []error
	for _, one := range proofs {
		if one.err != nil {
			errs = append(errs, one.err)
		}
		result.Findings = append(result.Findings, one.result.Findings...)
		for key, value := range one.result.Values { // of several, the first
			if _, ok := result.Values[key]; !ok {
				result.Values[key] = value
			}
		}
	}
	if len(state.Refused) > 0 {
		if err := processor.AddJSON(result.Values, map[string]any{KeyRefused: state.Refused}); err != nil {
			return result, err
		}
	}
	if len(errs) > 0 {
		return result, joinErrors(errs)
	}
	return result, nil
}

// refusalMessage says what is left, and what to do about it.
func (m planState) refusalMessage() string {
	texts := slices.Clone(m.Gone)
	for _, r := range m.Refused {
		texts = append(texts, fmt.Sprintf("%s. Next: %s", r.Reason, r.Next))
	}
	return processor.JoinReasons(texts, maxSentences)
}

// partProof is one part of a plan that is to be verified.
type partProof struct {
	planPart
	remedy processor.Recoverer
	plan   processor.Plan
	result processor.Result
	err    error
}

// splitPlan takes the plan apart.
func (h *Recoverer) splitPlan(p processor.Plan, m planState) ([]*partProof, error) {
	var all []*partProof
	action, finding := 0, 0
	for _, one := range m.Parts {
		to, found := action+one.Actions, finding+one.Findings
		remedy, ok := h.recovererNamed(one.Remedy)
		if !ok || one.Actions < 1 || one.Findings < 0 || to > len(p.Actions) || found > len(p.Findings) {
			return nil, processor.Stalled(fmt.Errorf("decode notes of plan: part of %q is not one of it", one.Remedy))
		}
		plan := processor.Plan{Actions: p.Actions[action:to], Findings: p.Findings[finding:found], Notes: one.Notes}
		for i := action; i < to; i++ {
			plan.Applied = append(plan.Applied, p.Outcome(i))
		}
		all, action, finding = append(all, &partProof{planPart: one, remedy: remedy, plan: plan}), to, found
	}
	return all, nil
}

func (h *Recoverer) recovererNamed(name string) (processor.Recoverer, bool) {
	for _, f := range h.Families {
		for _, r := range f.Remedies {
			if r.Name() == name {
				return r.Recoverer, true
			}
		}
	}
	return nil, false
}

func (one *partProof) verifyPart(ctx context.Context, r processor.Request) {
	if slices.ContainsFunc(one.plan.Applied, func(a fault.Applied) bool { return a.Undone }) {
		one.result.Findings = one.plan.Findings
		return
	}
	one.result, one.err = one.remedy.Verify(ctx, requestFor(r, one.Namespace, one.Pod), one.plan)
	if one.err != nil {
		one.result = processor.Result{Findings: one.plan.Findings}
		one.err = fmt.Errorf("%s: %w", one.Remedy, one.err)
	}
}

// runConcurrently calls a function for all, and panics if one of the calls does.
func runConcurrently[T any](all []T, fn func(T)) {
	var wait sync.WaitGroup
	panics := make(chan any, len(all))
	for _, one := range all {
		wait.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					panics <- p
				}
			}()
			fn(one)
		})
	}
	wait.Wait()
	select {
	case p := <-panics:
		panic(p)
	default:
	}
}
