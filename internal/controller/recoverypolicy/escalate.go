// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"context"
	"fmt"
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
	"kubediag.org/kubediag/internal/policy"
)

// These are the rights to look at the pods whose faults count for a cordon, and at their namespaces and nodes. The right to cordon is in
// config/components/cordon.
//
// +kubebuilder:rbac:groups="",resources=pods;namespaces;nodes,verbs=get

// pass is what one reconciliation of a policy knows.
type pass struct {
	policy   *policy.Policy // as it will be when its status is written
	reader   client.Reader  // asks the API server itself
	now      time.Time
	policies map[string]*policy.Policy
	faults   []v1.MountFault // of the cache: not to be changed
	// nodes is how many there are, and cordoned are those that are unschedulable. records are of those that a policy has cordoned, also
	// if a person has uncordoned them.
	nodes    int
	cordoned map[string]bool
	records  map[string]*cordonRecord
	bounds   map[string]string // why a policy may cordon no other node, by its name
}

// escalate has nodes cordoned, and reports in a condition whether faults that last are escalated. Evictions are Diagnoses, which package
// repairrequest makes.
func (r *Reconciler) escalate(ctx context.Context, e *pass) error {
	p := e.policy
	if p.Spec.Escalation == nil {
		meta.RemoveStatusCondition(&p.Status.Conditions, v1.ConditionEscalation)
		return nil
	}
	c := metav1.Condition{Type: v1.ConditionEscalation, Status: metav1.ConditionFalse, ObservedGeneration: p.Generation}
	switch {
	case len(p.Problems) > 0:
		c.Reason, c.Message = v1.ReasonInvalidSpec, "an invalid policy escalates nothing"
	case p.Spec.Paused:
		c.Reason, c.Message = v1.ReasonPaused, "spec.paused is set"
	case !p.Acts():
		c.Reason, c.Message = v1.ReasonNoRepair, fmt.Sprintf("mode %s escalates nothing", p.Spec.Mode)
	default:
		if err := r.act(ctx, e, &c); err != nil {
			return err
		}
	}
	meta.SetStatusCondition(&p.Status.Conditions, c)
	return nil
}

// act has nodes cordoned, and fills in what prevents an escalation.
func (r *Reconciler) act(ctx context.Context, e *pass, c *metav1.Condition) error {
	var texts []string
	prevented := func(reason, text string) {
		if text != "" {
			if c.Reason == "" {
				c.Reason = reason
			}
			texts = append(texts, text)
		}
	}
	missing, held, err := r.cordonOrNot(ctx, e)
	if err != nil {
		return err
	}
	prevented(v1.ReasonMissingRight, missing)
	prevented(v1.ReasonCordonHeld, held)
	prevented(v1.ReasonEvictionRefused, e.refused())
	if c.Reason == "" {
		c.Status, c.Reason = metav1.ConditionTrue, v1.ReasonEffective
		texts = append(texts, escalates[e.policy.Spec.Mode])
	}
	c.Message = strings.Join(texts, "; ")
	return nil
}

// cordonOrNot has a node cordoned if the policy wants that and the manager may. Only mode Automatic needs the right.
func (r *Reconciler) cordonOrNot(ctx context.Context, e *pass) (missing, held string, err error) {
	automatic := e.policy.Spec.Mode == v1.RecoveryAutomatic
	if e.policy.Spec.Cordon() == nil {
		return "", "", nil
	}
	if automatic {
		if missing = r.missingRight(ctx); missing != "" {
			return missing, "", nil
		}
	}
	held, err = r.cordon(ctx, e)
	if automatic && apierrors.IsForbidden(err) {
		return r.right.missing, "", nil
	}
	return "", held, err
}

// escalates says for each mode what is done about faults that last.
var escalates = map[v1.RecoveryMode]string{
	v1.RecoveryAutomatic: "faults that last are escalated, unless another policy is more careful",
	v1.RecoveryApprove:   "an eviction waits for its approval; a cordon is shown in an Event and not made",
	v1.RecoveryPlan:      "an eviction is planned; a cordon is shown in an Event and not made",
}

// newPass reads what a reconciliation of a policy needs.
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
		e.policies[policies.Items[i].Name] = policy.Compile(&policies.Items[i])
	}
	e.policies[p.Name] = p
	return e, nil
}

// refused says why a pod is not evicted that has the fault for long enough; empty if there is none.
func (e *pass) refused() string {
	first, text := "", ""
	for i := range e.faults {
		s := &e.faults[i].Status
		if s.Recovery == nil || s.Recovery.EvictionRefusal == "" || s.Pod == nil || !slices.Contains(s.Recovery.Policies, e.policy.Name) ||
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

// confirm decides about the faults of a node with all policies, as agents do, and with the pods as they are now. allowed are those that
// have the node cordoned, and shown those for which policies at least want to see that. Either is empty if they are not enough.
func (e *pass) confirm(ctx context.Context, node *corev1.Node, faults []lasting) (allowed, shown []lasting, err error) {
	all := make([]*policy.Policy, 0, len(e.policies))
	for _, other := range e.policies {
		all = append(all, other)
	}
	spaces := map[string]*metav1.ObjectMeta{}
	var automatic, some []lasting
	for _, f := range faults {
		about, err := e.faultNow(ctx, f.MountFault, node, spaces)
		if err != nil {
			return nil, nil, err
		}
		if about == nil {
			continue
		}
		d := policy.Decide(*about, all, v1.RecoveryObserve, e.now)
		c, ok := policy.CordonOf(d.Policies)
		if !ok || !slices.Contains(d.Policies, e.policy) || e.now.Sub(f.Status.Since.Time) < c.After {
			continue
		}
		now := lasting{f.MountFault, c, d.Policies}
		switch d.Mode {
		case v1.RecoveryAutomatic:
			automatic, some = append(automatic, now), append(some, now)
		case v1.RecoveryApprove, v1.RecoveryPlan:
			some = append(some, now)
		}
		allowed, shown = enough(automatic), enough(some)
		if len(allowed) > 0 || e.policy.Spec.Mode != v1.RecoveryAutomatic && len(shown) > 0 {
			break // more pods change nothing
		}
	}
	return allowed, shown, nil
}

// faultNow is a fault with its pod as the API server has it, or nil if the pod is gone, goes or is elsewhere.
func (e *pass) faultNow(ctx context.Context, f *v1.MountFault, node *corev1.Node, spaces map[string]*metav1.ObjectMeta) (*policy.Fault, error) {
	of, pod := f.Status.Pod, &corev1.Pod{}
	if err := e.reader.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if pod.UID != of.UID || pod.Spec.NodeName != node.Name || pod.DeletionTimestamp != nil {
		return nil, nil
	}
	space := spaces[pod.Namespace]
	if space == nil {
		n := &corev1.Namespace{}
		if err := e.reader.Get(ctx, types.NamespacedName{Name: pod.Namespace}, n); err != nil {
			return nil, client.IgnoreNotFound(err)
		}
		space = &n.ObjectMeta
		spaces[pod.Namespace] = space
	}
	return &policy.Fault{Code: f.Status.Code, Pod: &pod.ObjectMeta, Namespace: space, Node: &node.ObjectMeta}, nil
}

// AccessReviews asks what the manager itself may do.
type AccessReviews interface {
	Create(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview, o metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error)
}

// rightPasses is for how many passes an answer counts, which is a minute.
const rightPasses = 12

// right is what the manager knows about its right to patch nodes.
type right struct {
	asked   time.Time
	missing string // why it is not there; empty: it is
}

// missingRight says that the manager may not cordon nodes; empty: it may. It does not ask at each pass.
func (r *Reconciler) missingRight(ctx context.Context) string {
	now := r.Clock.Now()
	if now.Sub(r.right.asked).Abs() < rightPasses*r.Every {
		return r.right.missing
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
	return r.right.missing
}
