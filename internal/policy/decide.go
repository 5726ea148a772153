// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "kubediag.org/kubediag/api/v1"
)

// Fault is the fault for a decision. Only the labels and annotations of the objects count, and the namespace of the pod.
type Fault struct {
	Code string
	// Pod suffers. nil: the fault is of no pod.
	Pod *metav1.ObjectMeta
	// Namespace is the namespace of the pod, Node the node of the agent. nil: it is not known yet.
	Namespace, Node *metav1.ObjectMeta
}

// Decision is the decision of the policies about a fault.
type Decision struct {
	Mode v1.RecoveryMode
	// Reason of this mode.
	Reason
	// Policies select the fault, in the order of their names.
	Policies []*Policy
	// Paused is the name of a policy that is paused, and OptOut says that the owner of the pod wants no repair; no Why if it is not so.
	Paused string
	OptOut Reason
	// NeedsNamespace and NeedsNode are set if the decision may change when the namespace or the node is known.
	NeedsNamespace, NeedsNode bool
}

// Reason says for people why a repair is allowed or held.
type Reason struct {
	Why string
	// Until is when a hold ends without a change by a person. Zero: never, or it is not known when.
	Until time.Time
	// Next is the change by which a person ends a hold. Empty: there is no such change.
	Next string
}

// String returns the reason of a hold, and the next step; empty if nothing is held.
func (r Reason) String() string {
	text, next := r.Why, r.Next
	if !r.Until.IsZero() {
		text += " until " + r.Until.UTC().Format(time.RFC3339)
		next = "wait until then"
	}
	if next == "" {
		return text
	}
	return text + ". Next: " + next + ", and create another Diagnosis"
}

// Names returns the names of the policies that select the fault.
func (d *Decision) Names() []string {
	var names []string
	for _, p := range d.Policies {
		names = append(names, p.Object.Name)
	}
	return names
}

// Decide returns the mode of a fault for now. The most careful of all policies that select it holds. If no policy does, the
// mode is otherwise. A policy that is paused, invalid, outside of its windows, or whose breaker is open, allows no repair.
func Decide(f Fault, policies []*Policy, otherwise v1.RecoveryMode, now time.Time) Decision {
	d := Decision{Mode: v1.RecoveryAutomatic}
	for _, p := range policies {
		if !p.selects(&f, &d) {
			continue
		}
		d.Policies = append(d.Policies, p)
		if p.Object.Spec.Paused && d.Paused == "" {
			d.Paused = p.Object.Name
		}
		mode, reason := p.mode(&f, now)
		d.restrict(mode, reason)
	}
	slices.SortFunc(d.Policies, func(a, b *Policy) int { return strings.Compare(a.Object.Name, b.Object.Name) })
	if len(d.Policies) == 0 {
		d.Mode, d.Reason = otherwise, Reason{Why: "no RecoveryPolicy selects the fault", Next: "create a RecoveryPolicy that allows its repair"}
	} else if d.Mode == v1.RecoveryAutomatic {
		d.Reason = Reason{Why: "allowed by policy " + strings.Join(d.Names(), ", ")}
	}
	for _, owner := range []struct {
		object string
		meta   *metav1.ObjectMeta
	}{{"pod", f.Pod}, {"namespace", f.Namespace}} {
		if f.Pod == nil || owner.meta == nil || !strings.EqualFold(owner.meta.Annotations[v1.AnnotationRecovery], "off") {
			continue
		}
		d.OptOut = Reason{
			Why:  fmt.Sprintf("the %s has the annotation %s: %q", owner.object, v1.AnnotationRecovery, "off"),
			Next: fmt.Sprintf("remove the annotation from the %s", owner.object),
		}
		d.restrict(v1.RecoveryObserve, d.OptOut)
	}
	if f.Pod != nil && f.Namespace == nil && rank(d.Mode) > rank(v1.RecoveryObserve) {
		d.NeedsNamespace = true
	}
	switch {
	case d.NeedsNamespace:
		d.restrict(v1.RecoveryObserve, Reason{Why: "the labels of the namespace are not known yet"})
	case d.NeedsNode:
		d.restrict(v1.RecoveryObserve, Reason{Why: "the labels of the node are not known yet"})
	}
	return d
}

// restrict makes the decision at least as careful as a mode.
func (d *Decision) restrict(mode v1.RecoveryMode, reason Reason) {
	if rank(mode) < rank(d.Mode) {
		d.Mode, d.Reason = mode, reason
	}
}

// selects reports whether the policy selects a fault. It notes in the decision if that depends on labels that are not known.
func (p *Policy) selects(f *Fault, d *Decision) bool {
	if len(p.Object.Spec.FaultCodes) > 0 && !slices.Contains(p.Object.Spec.FaultCodes, f.Code) {
		return false
	}
	if f.Pod == nil && (p.pods != nil || p.namespaces != nil) || p.pods != nil && !p.pods.Matches(labels.Set(f.Pod.Labels)) {
		return false
	}
	if p.namespaces != nil && f.Namespace == nil {
		d.NeedsNamespace = true
		return false
	}
	if f.Node == nil && (p.nodes != nil || p.Object.Spec.Breaker != nil && p.Object.Spec.Breaker.NodePoolLabel != "") {
		d.NeedsNode = true
		return false
	}
	return (p.namespaces == nil || p.namespaces.Matches(labels.Set(f.Namespace.Labels))) &&
		(p.nodes == nil || p.nodes.Matches(labels.Set(f.Node.Labels)))
}

// ModeNow returns the mode of the policy for any fault that it selects, and the reason. A breaker holds only some faults.
func (p *Policy) ModeNow(now time.Time) (v1.RecoveryMode, Reason) { return p.mode(&Fault{}, now) }

// mode returns the mode of the policy for a fault that it selects.
func (p *Policy) mode(f *Fault, now time.Time) (v1.RecoveryMode, Reason) {
	switch {
	case len(p.Problems) > 0:
		return v1.RecoveryObserve, Reason{
			Why: fmt.Sprintf("policy %s is invalid: %s", p.Object.Name, v1.Message(p.Problems[:1])), Next: "correct RecoveryPolicy " + p.Object.Name,
		}
	case p.Object.Spec.Mode == v1.RecoveryOff:
		return v1.RecoveryOff, p.modeReason()
	case p.Object.Spec.Paused:
		return v1.RecoveryObserve, Paused(p.Object.Name)
	case p.Object.Spec.Mode == v1.RecoveryObserve, p.Object.Spec.Mode == v1.RecoveryPlan:
		return p.Object.Spec.Mode, p.modeReason()
	}
	if p.Object.Spec.Breaker != nil {
		pool := p.Pool(f.Node)
		b := p.Object.Status.Breaker(f.Code, pool)
		if f.Pod != nil && (b == nil || b.State != v1.BreakerOpen) {
			b = p.Object.Status.BreakerOf(f.Code, pool, f.Pod.Namespace)
		}
		if b != nil && b.State == v1.BreakerOpen {
			why := fmt.Sprintf("the breaker of policy %s for %s is open: %s", p.Object.Name, b.Code, b.Message)
			return v1.RecoveryObserve, Reason{Why: why, Next: CloseBreaker(p.Object.Name)}
		}
	}
	if !p.open(now) {
		return v1.RecoveryObserve, Reason{
			Why: fmt.Sprintf("policy %s allows repairs only in its windows", p.Object.Name), Until: p.opens(now),
			Next: "correct spec.windows of RecoveryPolicy " + p.Object.Name,
		}
	}
	if p.Object.Spec.Mode == v1.RecoveryApprove {
		return v1.RecoveryApprove, Reason{Why: fmt.Sprintf("policy %s wants approval", p.Object.Name), Next: "use mode Approve"}
	}
	return v1.RecoveryAutomatic, Reason{}
}

func (p *Policy) modeReason() Reason {
	return Reason{
		Why:  fmt.Sprintf("policy %s has mode %s", p.Object.Name, p.Object.Spec.Mode),
		Next: fmt.Sprintf("set spec.mode of RecoveryPolicy %s to Approve or Automatic", p.Object.Name),
	}
}

// Paused returns the reason for which a paused policy holds a repair.
func Paused(name string) Reason {
	return Reason{Why: fmt.Sprintf("policy %s is paused", name), Next: fmt.Sprintf("set spec.paused of RecoveryPolicy %s to false", name)}
}

// CloseBreaker returns the step by which a person closes the breakers of a policy.
func CloseBreaker(name string) string {
	return fmt.Sprintf("find out why the repairs fail, and set spec.breaker.resetTime of RecoveryPolicy %s to the present time", name)
}

// Pool returns the pool of a node, which is nil if its labels are not known and do not matter.
func (p *Policy) Pool(node *metav1.ObjectMeta) string {
	if p.Object.Spec.Breaker == nil || node == nil {
		return ""
	}
	return p.Object.Spec.Breaker.Pool(node.Labels)
}

// EvictAfter returns how long a fault lasts before its pod is evicted, if all policies that select it want that: the longest time.
// Otherwise ok is false, and by is the name of a policy that does not want it; empty if no policy selects the fault.
func EvictAfter(selecting []*Policy) (after time.Duration, ok bool, by string) {
	for _, p := range selecting {
		evict := p.Object.Spec.Evict()
		if evict == nil {
			return 0, false, p.Object.Name
		}
		after = max(after, time.Duration(evict.AfterSeconds)*time.Second)
	}
	return after, len(selecting) > 0, ""
}

// Cordon has the conditions for a fault to count for a cordon of its node.
type Cordon struct {
	// After is how long the fault has to last, and Pods how many pods of the node must have such faults.
	After time.Duration
	Pods  int
}

// CordonOf returns when a fault counts for a cordon, if all policies that select it want that: the greatest time and number.
func CordonOf(selecting []*Policy) (c Cordon, ok bool) {
	for _, p := range selecting {
		cordon := p.Object.Spec.Cordon()
		if cordon == nil {
			return Cordon{}, false
		}
		c.After = max(c.After, time.Duration(cordon.AfterSeconds)*time.Second)
		c.Pods = max(c.Pods, cordon.Pods())
	}
	return c, len(selecting) > 0
}

// Acts reports whether the policy can act on a fault or show it: it is valid, not paused, and its mode is neither
// Off nor Observe.
func (p *Policy) Acts() bool {
	return len(p.Problems) == 0 && !p.Object.Spec.Paused && rank(p.Object.Spec.Mode) > rank(v1.RecoveryObserve)
}
