// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package recoverypolicy checks RecoveryPolicies, opens and closes their breakers, and cordons nodes for them. It reads from
// MountFaults which nodes and pods have a fault, and how many repairs of it have failed. Agents write the MountFaults, obey the
// status that it writes, and decide without it: package policy holds the rules for both.
package recoverypolicy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/policy"
)

// These are the rights for it. Nodes are counted for the share of those that have a fault.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoverypolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoverypolicies/status,verbs=patch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

const (
	// Interval is the time between two checks of the breakers.
	Interval = 5 * time.Second
	// nodesAge is the greatest age of the list of nodes if it has all nodes that have a fault.
	nodesAge = time.Minute
)

// Reconciler checks RecoveryPolicies and keeps their breakers. It reconciles one at a time.
type Reconciler struct {
	// Client reads RecoveryPolicies and MountFaults from a cache, and writes the status of the first.
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	Events record.EventRecorder
	Clock  clock.PassiveClock
	// Access returns the rights of the manager itself.
	Access interface {
		Create(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
	}
	// Every is the time between two checks of breakers and of faults that last.
	Every time.Duration

	listed  time.Time
	nodes   map[string]map[string]string // labels by name
	records map[string]*cordonRecord     // of the nodes that a policy has cordoned at some time
	metrics breakerCounts

	right  right
	checks nodeChecks
}

// SetupWithManager adds the reconciler to a manager. A change of one policy may change the effect of another one.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	others := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, changed client.Object) []reconcile.Request {
		var all v1.RecoveryPolicyList
		if err := r.Client.List(ctx, &all); err != nil {
			return nil
		}
		var requests []reconcile.Request
		for i := range all.Items {
			if name := all.Items[i].Name; name != changed.GetName() {
				requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
			}
		}
		return requests
	})
	specs := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return builder.ControllerManagedBy(m).Named("recoverypolicy").
		For(&v1.RecoveryPolicy{}, specs).Watches(&v1.RecoveryPolicy{}, others, specs).
		Complete(r)
}

// Reconcile checks one policy, its breakers, and faults that last.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var old v1.RecoveryPolicy
	if err := r.Client.Get(ctx, req.NamespacedName, &old); err != nil {
		r.metrics.set(req.Name, nil)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	p, now := policy.Compile(old.DeepCopy(), fault.Known()), r.Clock.Now()
	e, err := r.newPass(ctx, p, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	var changes []change
	if p.Object.Spec.Breaker == nil {
		p.Object.Status.Breakers = nil
	} else if len(p.Problems) == 0 {
		counts, err := r.count(ctx, e)
		if err != nil {
			return reconcile.Result{}, err
		}
		p.Object.Status.Breakers, changes = decide(p.Object, counts, now)
	}
	held, err := r.cordonOne(ctx, e)
	if err := r.escalate(e, held, err); err != nil { // a breaker does not wait for it
		log.FromContext(ctx).Error(err, "Could not escalate faults that last")
	}
	e.setConditions()
	p.Object.Status.OpenBreakers = 0
	for _, b := range p.Object.Status.Breakers {
		if b.State == v1.BreakerOpen {
			p.Object.Status.OpenBreakers++
		}
	}
	result, err := kubeclient.PatchStatus(ctx, r.Client, &old, p.Object)
	if err != nil || result.RequeueAfter > 0 {
		return result, err
	}
	r.announce(&old, p.Object, changes)
	if p.Object.Spec.Breaker == nil && p.Object.Spec.Escalation == nil && len(p.Object.Spec.Windows) == 0 {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: r.Every}, nil
}

// setConditions reports whether the policy is valid, whether it can have a repair made now, and when its next window opens.
func (e *pass) setConditions() {
	p := e.policy
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady, Message: "RecoveryPolicy is valid",
		ObservedGeneration: p.Object.Generation,
	}
	effective := metav1.Condition{
		Type: v1.ConditionEffective, Status: metav1.ConditionFalse, ObservedGeneration: p.Object.Generation,
	}
	var overruling *policy.Policy // selects all that this policy selects, and is more careful
	for _, name := range slices.Sorted(maps.Keys(e.policies)) {
		if other := e.policies[name]; overruling == nil && other != p && other.Overrules(p) {
			overruling = other
		}
	}
	_, held := p.ModeNow(e.now)
	if p.Object.Status.NextWindowTime = nil; !held.Until.IsZero() {
		p.Object.Status.NextWindowTime = &metav1.Time{Time: held.Until}
	}
	switch {
	case len(p.Problems) > 0:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1.ReasonInvalidSpec, v1.Message(p.Problems)
		effective.Reason, effective.Message = v1.ReasonInvalidSpec, "an invalid policy allows no repair of what it selects"
	case p.Object.Spec.Paused:
		effective.Reason, effective.Message = v1.ReasonPaused, "spec.paused is set: no repair is made, also not by a Diagnosis"
	case p.Object.Spec.Mode == v1.RecoveryOff || p.Object.Spec.Mode == v1.RecoveryObserve || p.Object.Spec.Mode == v1.RecoveryPlan:
		effective.Reason, effective.Message = v1.ReasonNoRepair, fmt.Sprintf("mode %s allows no repair", p.Object.Spec.Mode)
	case overruling != nil:
		effective.Reason = v1.ReasonOverruled
		effective.Message = fmt.Sprintf("policy %s selects all that this policy selects, and has mode %s", overruling.Object.Name, overruling.Object.Spec.Mode)
	case p.NeverOpens(e.now):
		effective.Reason, effective.Message = v1.ReasonNeverFires, "spec.windows: no window opens in the next five years"
	case !held.Until.IsZero():
		effective.Reason, effective.Message = v1.ReasonOutsideWindow, "spec.windows: the next window opens at "+held.Until.UTC().Format(time.RFC3339)
	case !p.Repairs() && !meta.IsStatusConditionTrue(p.Object.Status.Conditions, v1.ConditionEscalation):
		effective.Reason, effective.Message = v1.ReasonNoRepair, "no fault that it selects has a repair without loss, and nothing is escalated"
	default:
		effective.Status, effective.Reason = metav1.ConditionTrue, v1.ReasonEffective
		effective.Message = fmt.Sprintf("mode %s holds, unless another policy is more careful", p.Object.Spec.Mode)
	}
	meta.SetStatusCondition(&p.Object.Status.Conditions, ready)
	meta.SetStatusCondition(&p.Object.Status.Conditions, effective)
}

// nodeLabels returns the labels of all nodes from a list that is no older than age.
func (r *Reconciler) nodeLabels(ctx context.Context, age time.Duration) (map[string]map[string]string, error) {
	if r.nodes != nil && r.Clock.Since(r.listed).Abs() < age {
		return r.nodes, nil
	}
	nodes, records, now := map[string]map[string]string{}, map[string]*cordonRecord{}, r.Clock.Now()
	err := r.eachNode(ctx, func(n *metav1.PartialObjectMetadata) {
		nodes[n.Name] = n.Labels
		if c := recordOf(n.Annotations); c != nil {
			records[n.Name] = c
		}
	})
	if err != nil {
		return nil, err
	}
	r.nodes, r.records, r.listed = nodes, records, now
	return nodes, nil
}

// eachNode lists nodes without their spec and status.
func (r *Reconciler) eachNode(ctx context.Context, visit func(*metav1.PartialObjectMetadata), options ...client.ListOption) error {
	err := kubeclient.EachPage(ctx, r.Reader, kubeclient.MetadataList("Node"), func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			visit(&page.Items[i])
		}
	}, options...)
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	return nil
}
