// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
)

// Consent says whether a person has allowed the repair of a Diagnosis.
type Consent int

// Consents.
const (
	// NoConsent: a Trigger has made the Diagnosis, and no person has approved its plan.
	NoConsent Consent = iota
	// PlanApproved: a Trigger has made it, and a person has approved its plan.
	PlanApproved
	// MadeElsewhere: a person has made it, in another namespace than that of the pod.
	MadeElsewhere
	// MadeByPerson: a person has made it, in the namespace of the pod.
	MadeByPerson
)

// Hold says why the repair of a fault by a Diagnosis is held; no Why if it is not. A paused policy holds all repairs.
// An owner who opts out holds all Diagnoses but those of people in the namespace of the pod, where the owner decides who they are.
// The other rules hold for Triggers, except that a Trigger needs no policy. pod is nil for a fault of no pod. It waits
// until enough is known to decide.
func (g *Guard) Hold(ctx context.Context, code fault.Code, pod *corev1.Pod, by Consent) (policy.Reason, error) {
	return g.ask(ctx, func() (policy.Reason, <-chan struct{}) {
		decision, answered := g.decideFully(code, pod)
		switch {
		case answered != nil:
			return policy.Reason{}, answered
		case decision.Paused != "":
			return policy.Paused(decision.Paused), nil
		case by == MadeByPerson:
			return policy.Reason{}, nil
		case decision.OptOut.Why != "":
			return decision.OptOut, nil
		case by == MadeElsewhere || len(decision.Policies) == 0:
			return policy.Reason{}, nil
		case decision.Mode == v1.RecoveryAutomatic || decision.Mode == v1.RecoveryApprove && by == PlanApproved:
			return policy.Reason{}, nil
		}
		return decision.Reason, nil
	})
}

// Request is a repair by a Diagnosis that policies have asked for.
type Request struct {
	Code fault.Code
	Pod  *corev1.Pod // nil for a fault of no pod
	// Approved is set if a person has approved the plan, and Evicts if the repair is to evict the pod.
	Approved, Evicts bool
}

// HoldRequested says why such a repair is held, and takes nothing; no Why if it is not.
func (g *Guard) HoldRequested(ctx context.Context, r Request) (policy.Reason, error) {
	return g.ask(ctx, func() (policy.Reason, <-chan struct{}) {
		_, held, answered := g.decideRequested(r)
		return held, answered
	})
}

// decideRequested decides whether the policies that have asked for a repair allow it still.
func (g *Guard) decideRequested(r Request) (d policy.Decision, held policy.Reason, answered <-chan struct{}) {
	d, answered = g.decideFully(r.Code, r.Pod)
	allowed := d.Mode == v1.RecoveryAutomatic || d.Mode == v1.RecoveryApprove && r.Approved
	if answered != nil || !allowed {
		return d, d.Reason, answered
	}
	if _, ok, by := policy.EvictAfter(d.Policies); r.Evicts && !ok {
		if by == "" {
			return d, d.Reason, nil
		}
		return d, policy.Reason{
			Why: fmt.Sprintf("policy %s has no spec.escalation.evict", by), Next: "set spec.escalation.evict of RecoveryPolicy " + by,
		}, nil
	}
	return d, policy.Reason{}, nil
}

// AcquireRequested takes a repair from the budgets that policies have asked for. Else it says why not. The policies have to allow it
// still. A cooldown does not count: a person has decided, or another pod comes in place of this one.
func (g *Guard) AcquireRequested(ctx context.Context, r Request) (policy.Reason, error) {
	return g.ask(ctx, func() (policy.Reason, <-chan struct{}) {
		d, held, answered := g.decideRequested(r)
		if answered != nil || held.Why != "" {
			return held, answered
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		refusal, pending := g.take(r.Pod, d.Policies, time.Now())
		if pending {
			return policy.Reason{}, g.waiting.answered
		}
		if refusal.Why == "" {
			g.failures.noteAllowed(r.Code, ownerOf(r.Pod), d.Names())
		}
		return refusal, nil
	})
}

// ask asks until the answer does not depend on the API server any more.
func (g *Guard) ask(ctx context.Context, question func() (policy.Reason, <-chan struct{})) (policy.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for {
		why, answered := question()
		if answered == nil {
			return why, nil
		}
		select {
		case <-ctx.Done():
			return policy.Reason{}, fmt.Errorf("asking what policies allow: %w", ctx.Err())
		case <-answered:
		}
	}
}

// decideFully decides with the labels of the namespace and the node. If answered is not nil, one of them is being read.
func (g *Guard) decideFully(code fault.Code, pod *corev1.Pod) (decision policy.Decision, answered <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if decision = g.decide(code, pod, now); decision.NeedsNamespace || decision.NeedsNode {
		return decision, g.waiting.answered
	}
	if pod != nil && g.objects.get(pod.Namespace, now) == nil {
		g.objects.want(pod.Namespace)
		return decision, g.waiting.answered
	}
	return decision, nil
}
