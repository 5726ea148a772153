// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
)

// These are the rights to read the pods whose faults count for a cordon, their namespaces and their nodes. The right to cordon is in
// config/components/cordon.
//
// +kubebuilder:rbac:groups="",resources=pods;namespaces;nodes,verbs=get

// pass has the facts for one reconciliation of a policy.
type pass struct {
	policy   *policy.Policy // as it will be when its status is written
	reader   client.Reader  // reads from the API server itself
	now      time.Time
	policies map[string]*policy.Policy
	faults   []v1.MountFault // of the cache: not to be changed
	// nodes is the number of nodes, and cordoned has those that are unschedulable. records has the nodes that a policy has cordoned, also
	// if a person has uncordoned them.
	nodes    int
	cordoned map[string]bool
	records  map[string]*cordonRecord
	bounds   map[string]string // why a policy may cordon no other node, by its name
}

// escalate reports in a condition whether faults that last are escalated. held and err are the result of cordonOne. Evictions are Diagnoses, which
// package repairrequest makes.
func (r *Reconciler) escalate(e *pass, held string, err error) error {
	p := e.policy
	if p.Object.Spec.Escalation == nil {
		meta.RemoveStatusCondition(&p.Object.Status.Conditions, v1.ConditionEscalation)
		return nil
	}
	c := metav1.Condition{Type: v1.ConditionEscalation, Status: metav1.ConditionFalse, ObservedGeneration: p.Object.Generation}
	var texts []string
	block := func(reason, text string) {
		if text != "" {
			c.Reason = cmp.Or(c.Reason, reason)
			texts = append(texts, text)
		}
	}
	automatic := p.Object.Spec.Mode == v1.RecoveryAutomatic
	switch {
	case len(p.Problems) > 0:
		block(v1.ReasonInvalidSpec, "an invalid policy escalates nothing")
	case p.Object.Spec.Paused:
		block(v1.ReasonPaused, "spec.paused is set")
	case !p.Acts():
		block(v1.ReasonNoRepair, fmt.Sprintf("mode %s escalates nothing", p.Object.Spec.Mode))
	default:
		switch {
		case automatic && apierrors.IsForbidden(err):
			if r.right.missing == "" { // it is another right than the one to cordon, such as to list nodes
				block(v1.ReasonMissingRight, err.Error())
			}
		case err != nil:
			return err
		default:
			block(v1.ReasonCordonHeld, held)
		}
		if p.Object.Spec.Cordon() != nil && automatic {
			block(v1.ReasonMissingRight, r.right.missing)
		}
		block(v1.ReasonEvictionRefused, e.evictionRefusal())
	}
	if c.Reason == "" {
		c.Status, c.Reason = metav1.ConditionTrue, v1.ReasonEffective
		texts = append(texts, escalates[p.Object.Spec.Mode])
	}
	c.Message = strings.Join(texts, "; ")
	meta.SetStatusCondition(&p.Object.Status.Conditions, c)
	return nil
}

// escalates describes the escalation of faults that last, by mode.
var escalates = map[v1.RecoveryMode]string{
	v1.RecoveryAutomatic: "faults that last are escalated, unless another policy is more careful",
	v1.RecoveryApprove:   "an eviction waits for its approval; a cordon is shown in an Event and not made",
	v1.RecoveryPlan:      "an eviction is planned; a cordon is shown in an Event and not made",
}

// newPass reads all policies and faults for a reconciliation of one policy.
func (r *Reconciler) newPass(ctx context.Context, p *policy.Policy, now time.Time) (*pass, error) {
	var policies v1.RecoveryPolicyList
	if err := r.Client.List(ctx, &policies); err != nil {
		return nil, fmt.Errorf("listing recovery policies: %w", err)
	}
	var faults v1.MountFaultList
	if err := r.Client.List(ctx, &faults, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing mountfaults: %w", err)
	}
	e := &pass{policy: p, reader: r.Reader, now: now, policies: map[string]*policy.Policy{}, faults: faults.Items}
	for i := range policies.Items {
		e.policies[policies.Items[i].Name] = policy.Compile(&policies.Items[i], fault.Known())
	}
	e.policies[p.Object.Name] = p
	return e, nil
}

// evictionRefusal says why a pod that has a fault for long enough is not evicted; empty if each such pod is.
func (e *pass) evictionRefusal() string {
	first, text := "", ""
	for i := range e.faults {
		s := &e.faults[i].Status
		if s.Recovery == nil || s.Recovery.EvictionRefusal == "" || s.Pod == nil || !slices.Contains(s.Recovery.Policies, e.policy.Object.Name) ||
			e.now.Sub(s.Since.Time) < time.Duration(s.Recovery.EvictAfterSeconds)*time.Second {
			continue
		}
		if name := s.Pod.Namespace + "/" + s.Pod.Name; first == "" || name < first {
			first, text = name, s.Recovery.EvictionRefusal
		}
	}
	if first == "" {
		return ""
	}
	return fmt.Sprintf("pod %s is not evicted: %s", first, text)
}

// decideNow decides about the faults of a node with all policies, as agents do, and with the pods as the API server has them. allowed are
// the faults for which all policies let it cordon the node, and shown those for which they at least let it show that in an Event. Either
// is empty if they are not enough.
func (e *pass) decideNow(ctx context.Context, node *corev1.Node, faults []cordonFault) (allowed, shown []cordonFault, err error) {
	all := slices.Collect(maps.Values(e.policies))
	spaces := map[string]*corev1.Namespace{}
	var automatic, some []cordonFault
	for _, f := range faults {
		of, pod := f.fault.Status.Pod, &corev1.Pod{}
		if err := e.reader.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, pod); client.IgnoreNotFound(err) != nil {
			return nil, nil, err
		} else if err != nil || pod.UID != of.UID || pod.Spec.NodeName != node.Name || pod.DeletionTimestamp != nil {
			continue // the pod is gone, goes, or is elsewhere
		}
		space := spaces[pod.Namespace]
		if space == nil {
			space = &corev1.Namespace{}
			if err := e.reader.Get(ctx, types.NamespacedName{Name: pod.Namespace}, space); apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
			spaces[pod.Namespace] = space
		}
		about := policy.Fault{Code: f.fault.Status.Code, Pod: &pod.ObjectMeta, Namespace: &space.ObjectMeta, Node: &node.ObjectMeta}
		d := policy.Decide(about, all, v1.RecoveryObserve, e.now)
		c, ok := policy.CordonOf(d.Policies)
		if !ok || !slices.Contains(d.Policies, e.policy) || e.now.Sub(f.fault.Status.Since.Time) < c.After {
			continue
		}
		now := cordonFault{f.fault, c, d.Policies}
		switch d.Mode {
		case v1.RecoveryAutomatic:
			automatic, some = append(automatic, now), append(some, now)
		case v1.RecoveryApprove, v1.RecoveryPlan:
			some = append(some, now)
		}
		allowed, shown = enoughToCordon(automatic), enoughToCordon(some)
		if len(allowed) > 0 || e.policy.Object.Spec.Mode != v1.RecoveryAutomatic && len(shown) > 0 {
			break // more pods change nothing
		}
	}
	return allowed, shown, nil
}

// rightPasses is for how many passes an answer counts, which is a minute.
const rightPasses = 12

// right is the last answer of the API server on the right to patch nodes.
type right struct {
	asked   time.Time
	missing string // why the manager does not have it; empty if it has
}

// mayCordon reports whether the manager may cordon nodes; if not, r.right says why. It sends no request at each pass.
func (r *Reconciler) mayCordon(ctx context.Context) bool {
	now := r.Clock.Now()
	if now.Sub(r.right.asked).Abs() < rightPasses*r.Every {
		return r.right.missing == ""
	}
	review, err := r.Access.Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "patch", Resource: "nodes"},
	}}, metav1.CreateOptions{})
	switch {
	case err != nil:
		r.right = right{now, "it is not known if the manager may patch nodes: " + err.Error()}
	case !review.Status.Allowed:
		r.right = right{now, "no node is cordoned: the manager has no right to patch nodes, which config/components/cordon gives"}
	default:
		r.right = right{asked: now}
	}
	return r.right.missing == ""
}
