// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	v1 "kubediag.org/kubediag/api/v1"
)

// Object is what policies need to know of a pod, a namespace or a node.
type Object struct {
	Labels, Annotations map[string]string
}

// optsOut reports whether the owner of a pod or a namespace wants no repair without a request.
func (o *Object) optsOut() bool {
	return strings.EqualFold(o.Annotations[v1.AnnotationRecovery], "off")
}

// Fault is the fault that is to be decided about.
type Fault struct {
	Code string
	// Pod suffers. nil: the fault is of no pod.
	Pod *Object
	// Namespace is that of the pod, Node the node of the agent. nil: it is not known yet.
	Namespace, Node *Object
}

// Decision is what the policies say about a fault.
type Decision struct {
	Mode v1.RecoveryMode
	// Why says for people why it is this mode.
	Why string
	// Policies select the fault, in the order of their names.
	Policies []*Policy
	// Paused is the name of a policy that is paused, and OptOut is set if the owner of the pod wants no repair.
	Paused string
	OptOut bool
	// NeedsNamespace and NeedsNode are set if the decision may be another one when the namespace or the node is known.
	NeedsNamespace, NeedsNode bool
}

// Names are the names of the policies that select the fault.
func (d *Decision) Names() []string {
	var names []string
	for _, p := range d.Policies {
		names = append(names, p.Name)
	}
	return names
}

// Decide says what may be done about a fault now. The most careful of all policies that select it holds. If none does, the
// mode is otherwise. A policy that is paused, invalid, outside of its windows, or whose breaker is open, allows no repair.
func Decide(f Fault, policies []*Policy, otherwise v1.RecoveryMode, now time.Time) Decision {
	d := Decision{Mode: v1.RecoveryAutomatic}
	for _, p := range policies {
		if !p.selects(&f, &d) {
			continue
		}
		d.Policies = append(d.Policies, p)
		if p.Spec.Paused && d.Paused == "" {
			d.Paused = p.Name
		}
		mode, why := p.mode(&f, now)
		d.restrict(mode, why)
	}
	slices.SortFunc(d.Policies, func(a, b *Policy) int { return strings.Compare(a.Name, b.Name) })
	if len(d.Policies) == 0 {
		d.Mode, d.Why = otherwise, "no RecoveryPolicy selects the fault"
	} else if d.Mode == v1.RecoveryAutomatic {
		d.Why = "allowed by policy " + strings.Join(d.Names(), ", ")
	}
	d.consider(&f)
	return d
}

// restrict makes the decision as careful as a mode.
func (d *Decision) restrict(mode v1.RecoveryMode, why string) {
	if rank(mode) < rank(d.Mode) {
		d.Mode, d.Why = mode, why
	}
}

// consider takes into account what the owner of the pod wants, and what is not known.
func (d *Decision) consider(f *Fault) {
	if f.Pod != nil && f.Pod.optsOut() {
		d.OptOut = true
		d.restrict(v1.RecoveryObserve, fmt.Sprintf("the pod has the annotation %s: %q", v1.AnnotationRecovery, "off"))
	}
	if f.Pod != nil && f.Namespace != nil && f.Namespace.optsOut() {
		d.OptOut = true
		d.restrict(v1.RecoveryObserve, fmt.Sprintf("the namespace has the annotation %s: %q", v1.AnnotationRecovery, "off"))
	}
	if f.Pod != nil && f.Namespace == nil && rank(d.Mode) > rank(v1.RecoveryObserve) {
		d.NeedsNamespace = true
	}
	switch {
	case d.NeedsNamespace:
		d.restrict(v1.RecoveryObserve, "the labels of the namespace are not known yet")
	case d.NeedsNode:
		d.restrict(v1.RecoveryObserve, "the labels of the node are not known yet")
	}
}

// selects reports whether the policy selects a fault. If that depends on what is not known, it notes so in the decision.
func (p *Policy) selects(f *Fault, d *Decision) bool {
	if len(p.Spec.FaultCodes) > 0 && !slices.Contains(p.Spec.FaultCodes, f.Code) {
		return false
	}
	if f.Pod == nil && (p.pods != nil || p.namespaces != nil) || p.pods != nil && !p.pods.Matches(labels.Set(f.Pod.Labels)) {
		return false
	}
	if p.namespaces != nil && f.Namespace == nil {
		d.NeedsNamespace = true
		return false
	}
	if p.needsNode() && f.Node == nil {
		d.NeedsNode = true
		return false
	}
	return (p.namespaces == nil || p.namespaces.Matches(labels.Set(f.Namespace.Labels))) &&
		(p.nodes == nil || p.nodes.Matches(labels.Set(f.Node.Labels)))
}

// mode is what the policy says about a fault that it selects.
func (p *Policy) mode(f *Fault, now time.Time) (v1.RecoveryMode, string) {
	switch {
	case len(p.Problems) > 0:
		return v1.RecoveryObserve, fmt.Sprintf("policy %s is invalid: %s", p.Name, v1.Message(p.Problems[:1]))
	case p.Spec.Mode == v1.RecoveryOff:
		return v1.RecoveryOff, fmt.Sprintf("policy %s has mode Off", p.Name)
	case p.Spec.Paused:
		return v1.RecoveryObserve, fmt.Sprintf("policy %s is paused", p.Name)
	case p.Spec.Mode == v1.RecoveryObserve, p.Spec.Mode == v1.RecoveryPlan:
		return p.Spec.Mode, fmt.Sprintf("policy %s has mode %s", p.Name, p.Spec.Mode)
	}
	if why := p.breaks(f); why != "" {
		return v1.RecoveryObserve, why
	}
	if !p.open(now) {
		return v1.RecoveryObserve, fmt.Sprintf("policy %s allows repairs only in its windows", p.Name)
	}
	if p.Spec.Mode == v1.RecoveryApprove {
		return v1.RecoveryApprove, fmt.Sprintf("policy %s wants approval", p.Name)
	}
	return v1.RecoveryAutomatic, ""
}

// breaks says which breaker is open; empty if none is.
func (p *Policy) breaks(f *Fault) string {
	if p.Spec.Breaker == nil {
		return ""
	}
	b := p.Status.Breaker(f.Code, p.Pool(f.Node))
	if b == nil || b.State != v1.BreakerOpen {
		return ""
	}
	return fmt.Sprintf("the breaker of policy %s for %s is open: %s", p.Name, b.Code, b.Message)
}

// Pool returns the pool of a node, which is nil if its labels are not known and do not matter.
func (p *Policy) Pool(node *Object) string {
	if p.Spec.Breaker == nil || node == nil {
		return ""
	}
	return p.Spec.Breaker.Pool(node.Labels)
}
