// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// compare orders pods by name.
func compare(a, b processor.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Verify has each recoverer prove its own part, all at once: most of it is to wait for containers. A part that was not
// done is not verified, and its faults stay.
func (h *Recoverer) Verify(ctx context.Context, r processor.Request, p processor.Plan) (processor.Result, error) {
	var m memory
	if err := p.LoadState(&m); err != nil {
		return processor.Result{}, err
	}
	proofs, err := h.proofs(p, m)
	if err != nil {
		return processor.Result{}, err
	}
	atOnce(proofs, func(one *proof) { one.verify(ctx, r) })
	result := processor.Result{Values: map[string]string{}, Message: m.message()}
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
	if len(m.Refused) > 0 {
		text, err := json.Marshal(m.Refused)
		if err != nil {
			return result, fmt.Errorf("encode %q: %w", KeyRefused, err)
		}
		result.Values[KeyRefused] = string(text)
	}
	if len(errs) > 0 {
		return result, all(errs)
	}
	return result, nil
}

// message says what is left, and what to do about it.
func (m memory) message() string {
	texts := slices.Clone(m.Gone)
	for _, r := range m.Refused {
		texts = append(texts, fmt.Sprintf("%s. Next: %s", r.Reason, r.Next))
	}
	return processor.JoinReasons(texts, maxSaid)
}

// proof is one part of a plan that is to be verified.
type proof struct {
	part
	remedy processor.Recoverer
	plan   processor.Plan
	result processor.Result
	err    error
}

// proofs takes the plan apart.
func (h *Recoverer) proofs(p processor.Plan, m memory) ([]*proof, error) {
	var all []*proof
	action, finding := 0, 0
	for _, one := range m.Parts {
		to, found := action+one.Actions, finding+one.Findings
		remedy, ok := h.named(one.Remedy)
		if !ok || one.Actions < 1 || one.Findings < 0 || to > len(p.Actions) || found > len(p.Findings) {
			return nil, processor.Stalled(fmt.Errorf("decode notes of plan: part of %q is not one of it", one.Remedy))
		}
		plan := processor.Plan{Actions: p.Actions[action:to], Findings: p.Findings[finding:found], Notes: one.Notes}
		for i := action; i < to; i++ {
			plan.Applied = append(plan.Applied, p.Outcome(i))
		}
		all, action, finding = append(all, &proof{part: one, remedy: remedy, plan: plan}), to, found
	}
	return all, nil
}

func (h *Recoverer) named(name string) (processor.Recoverer, bool) {
	for _, f := range h.Families {
		for _, r := range f.Remedies {
			if r.Name() == name {
				return r.Recoverer, true
			}
		}
	}
	return nil, false
}

func (one *proof) verify(ctx context.Context, r processor.Request) {
	if slices.ContainsFunc(one.plan.Applied, func(a fault.Applied) bool { return a.Undone }) {
		one.result.Findings = one.plan.Findings
		return
	}
	one.result, one.err = one.remedy.Verify(ctx, about(r, one.Namespace, one.Pod), one.plan)
	if one.err != nil {
		one.result = processor.Result{Findings: one.plan.Findings}
		one.err = fmt.Errorf("%s: %w", one.Remedy, one.err)
	}
}

// atOnce calls a function for all, and panics if one of the calls does.
func atOnce[T any](all []T, fn func(T)) {
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
