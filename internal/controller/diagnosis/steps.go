// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/podstatus"
)

// skipEnded stops at a Diagnosis that has ended or is being deleted, and at a record, which is not run. It corrects the label by which
// agents watch.
func (r *Reconciler) skipEnded(_ context.Context, v *reconcileScope) error {
	v.isDone = isOver(v.before) || !v.before.DeletionTimestamp.IsZero()
	switch want, wrong := wrongLabel(v.before); {
	case wrong && want == "":
		delete(v.diagnosis.Labels, v1.LabelNode)
	case wrong:
		metav1.SetMetaDataLabel(&v.diagnosis.ObjectMeta, v1.LabelNode, want)
	}
	return nil
}

// isOver reports whether no agent runs the Diagnosis, now or later.
func isOver(d *v1.Diagnosis) bool { return d.Ended() || d.Spec.Mode == v1.ModeRecord }

// wrongLabel reports whether a Diagnosis that is over has a label other than its node, or any label if no agent took it. In that case its
// creator chose the node, and the agent there need not see it.
func wrongLabel(d *v1.Diagnosis) (want string, wrong bool) {
	if d.Spec.Mode == v1.ModeRecord || meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted) {
		want = v1.NodeLabelValue(d.Spec.NodeName)
	}
	label := d.Labels[v1.LabelNode]
	return want, isOver(d) && label != "" && label != want
}

// validateSpec refuses a spec that the schema should have refused. API servers before 1.25 check no CEL rules, and a Diagnosis may be older than
// a bound. It is read live, once, as the cache has no parameters: the phase says that it was valid.
func (r *Reconciler) validateSpec(ctx context.Context, v *reconcileScope) error {
	if v.before.Status.Phase != "" {
		return nil
	}
	now := &v1.Diagnosis{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(v.before), now); err != nil || now.UID != v.before.UID {
		v.isDone = true
		return client.IgnoreNotFound(err)
	}
	if errs := now.Spec.Validate(); len(errs) > 0 {
		r.refuseDiagnosis(v, v1.ReasonInvalid, v1.Message(errs))
	}
	return nil
}

// checkNamespace refuses a pod of another namespace if no admission policy has checked the rights of the author there.
func (r *Reconciler) checkNamespace(ctx context.Context, v *reconcileScope) error {
	if v.before.Started() {
		return nil
	}
	why, err := r.Rights.Refusal(ctx, v.before)
	if err == nil && why != "" {
		r.refuseDiagnosis(v, v1.ReasonPodInOtherNamespace, why)
	}
	return err
}

// bindToNode finds the node and names it in the label by which its agent watches. A Diagnosis that has its place
// already gets its label back and nothing else.
func (r *Reconciler) bindToNode(ctx context.Context, scope *reconcileScope) error {
	if isBound(scope.before) {
		return r.checkPlace(ctx, scope)
	}
	if !scope.before.HasPlace() {
		if err := r.waitForPlace(ctx, scope, false); err != nil || scope.isDone {
			return err
		}
		if err := r.locateNode(ctx, scope); err != nil || scope.isDone {
			return err
		}
	}
	if scope.diagnosis.Spec.NodeName == "" {
		scope.isDone = true // an older release left it running nowhere
		return nil
	}
	if !scope.before.HasPlace() {
		if err := r.waitForPlace(ctx, scope, true); err != nil || scope.isDone {
			return err
		}
	}
	origin := v1.OriginPerson // a Trigger and a policy have the manager make their Diagnoses, which names the origin at once
	switch d := scope.diagnosis; d.Labels[v1.LabelOrigin] {
	case v1.OriginTrigger:
		if d.Labels[v1.LabelTrigger] != "" {
			origin = v1.OriginTrigger
		}
	case v1.OriginPolicy: // policies leave repairs to the agents, but not evictions
		if m := d.Spec.Mode; m == v1.ModeApprove || m == v1.ModePlan || m == v1.ModeRecover && d.Spec.OperationSet == v1.EvictOperationSet {
			origin = v1.OriginPolicy
		}
	}
	metav1.SetMetaDataLabel(&scope.diagnosis.ObjectMeta, v1.LabelNode, v1.NodeLabelValue(scope.diagnosis.Spec.NodeName))
	metav1.SetMetaDataLabel(&scope.diagnosis.ObjectMeta, v1.LabelOrigin, origin)
	scope.requeueAfter, scope.isDone = r.Agents.CheckEvery, true
	return nil
}

// checkPlace finds a place for a Diagnosis whose author has written the label. If there is none, it removes the label.
func (r *Reconciler) checkPlace(ctx context.Context, scope *reconcileScope) error {
	if scope.before.HasPlace() {
		return nil
	}
	why, err := r.findPlace(ctx, scope.diagnosis, true)
	switch {
	case err != nil:
	case why != "":
		delete(scope.diagnosis.Labels, v1.LabelNode)
		scope.requeueAfter, scope.isDone = conflictDelay, true
	default:
		r.markBound(scope)
	}
	return err
}

// waitForPlace finds or takes a place for the Diagnosis, or marks that it waits for one.
func (r *Reconciler) waitForPlace(ctx context.Context, scope *reconcileScope, take bool) error {
	why, err := r.findPlace(ctx, scope.diagnosis, take)
	if err != nil || why == "" {
		return err
	}
	scope.diagnosis.Spec.NodeName = scope.before.Spec.NodeName
	r.markWaiting(scope, v1.ReasonNoPlace, why)
	return nil
}

// locateNode fills in spec.nodeName, or refuses, or waits.
func (r *Reconciler) locateNode(ctx context.Context, scope *reconcileScope) error {
	ref := scope.diagnosis.Spec.PodReference
	if ref == nil {
		absent, err := kubeclient.NodeAbsent(ctx, r.Reader, scope.diagnosis.Spec.NodeName)
		if absent {
			r.refuseNode(scope)
		}
		return err
	}
	var pod corev1.Pod
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		r.refuseDiagnosis(scope, v1.ReasonPodNotFound, fmt.Sprintf("spec.podReference: Pod %s/%s does not exist", ref.Namespace, ref.Name))
	case err != nil:
		return fmt.Errorf("reading pod %s/%s: %w", ref.Namespace, ref.Name, err)
	case !hasContainer(&pod, ref.Container):
		missing := field.NotFound(field.NewPath("spec", "podReference", "container"), ref.Container)
		r.refuseDiagnosis(scope, v1.ReasonInvalid, missing.Error()+fmt.Sprintf(": Pod %s/%s has no such container", ref.Namespace, ref.Name))
	case pod.Spec.NodeName == "" && scope.diagnosis.Spec.Set() == v1.DefaultOperationSet && len(podstatus.Why(&pod, "")) > 0:
		// The scheduler has said why the pod has no node. It has no mount anywhere, and so no fault.
		message := podstatus.Sentence(&pod, "")
		r.end(scope, v1.DiagnosisSucceeded, v1.OutcomeNoFault, message)
		r.setCondition(scope, v1.ConditionAccepted, metav1.ConditionFalse, v1.ReasonPodNotScheduled, message)
		r.setCondition(scope, v1.ConditionComplete, metav1.ConditionTrue, v1.ReasonComplete, "Diagnosis is completed")
		scope.addNormal(reasonSucceeded, message)
	case pod.Spec.NodeName == "":
		r.markWaiting(scope, v1.ReasonPodNotScheduled, fmt.Sprintf("Pod %s/%s is not scheduled to a node yet", ref.Namespace, ref.Name))
	case scope.diagnosis.Spec.NodeName != "" && scope.diagnosis.Spec.NodeName != pod.Spec.NodeName:
		r.refuseDiagnosis(scope, v1.ReasonPodOnOtherNode, fmt.Sprintf("spec.nodeName: Pod %s/%s is on node %q, not on %q",
			ref.Namespace, ref.Name, pod.Spec.NodeName, scope.diagnosis.Spec.NodeName))
	default:
		scope.diagnosis.Spec.NodeName = pod.Spec.NodeName
	}
	return nil
}

// checkAgent reports in a bound Diagnosis whether the agent that has it, or should take it, is alive.
func (r *Reconciler) checkAgent(ctx context.Context, scope *reconcileScope) error {
	agent, err := r.Agents.stateOf(ctx, scope.diagnosis.Spec.NodeName)
	if err != nil {
		return err
	}
	scope.requeueAfter = r.Agents.CheckEvery
	if agent.Alive {
		// The conditions of an agent that did not answer are taken back.
		s := &scope.diagnosis.Status
		if c := meta.FindStatusCondition(s.Conditions, v1.ConditionAccepted); c != nil && c.Reason == v1.ReasonNoAgent {
			meta.RemoveStatusCondition(&s.Conditions, v1.ConditionAccepted)
			s.Summary = ""
		}
		if c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete); c != nil && c.Reason == v1.ReasonAgentLost {
			meta.RemoveStatusCondition(&s.Conditions, v1.ConditionComplete)
			s.Summary = ""
		}
		if s.Phase == v1.DiagnosisUnknown {
			s.Phase = v1.DiagnosisRunning
			scope.addNormal(reasonAgentBack, fmt.Sprintf("Agent on node %s is back", scope.diagnosis.Spec.NodeName))
		}
		return nil
	}
	absent, err := kubeclient.NodeAbsent(ctx, r.Reader, scope.diagnosis.Spec.NodeName)
	switch {
	case err != nil:
		return err
	case absent:
		r.refuseNode(scope)
	case !scope.before.Started():
		r.markWaiting(scope, v1.ReasonNoAgent, agent.String())
	case agent.Lost:
		if scope.before.Status.Phase != v1.DiagnosisUnknown {
			scope.addWarning(v1.ReasonAgentLost, agent.String())
		}
		scope.diagnosis.Status.Phase = v1.DiagnosisUnknown
		r.setCondition(scope, v1.ConditionComplete, metav1.ConditionUnknown, v1.ReasonAgentLost, agent.String())
		scope.setSummary(agent.String())
		scope.requeueAfter = r.waitBackoff(meta.FindStatusCondition(scope.diagnosis.Status.Conditions, v1.ConditionComplete).LastTransitionTime)
	}
	return nil
}

func hasContainer(pod *corev1.Pod, name string) bool {
	if name == "" {
		return true
	}
	named := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Spec.Containers, named) || slices.ContainsFunc(pod.Spec.InitContainers, named) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
}

// isBound reports whether the agent of the node can see the Diagnosis. It begins it only if the Diagnosis also has a place.
func isBound(d *v1.Diagnosis) bool {
	return d.Spec.NodeName != "" && d.Labels[v1.LabelNode] == v1.NodeLabelValue(d.Spec.NodeName)
}

// waitBackoff returns the next delay of a Diagnosis that has waited since then.
func (r *Reconciler) waitBackoff(since metav1.Time) time.Duration {
	return min(max(r.Clock.Since(since.Time), minWait), maxWait)
}
