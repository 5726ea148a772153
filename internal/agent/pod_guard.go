// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/admission"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
)

// podGuard admits only Diagnoses whose pod is on this node, and in a namespace that their author may repair. The manager checked that
// when it bound them. Since then the pod may have gone, and another user may have changed the Diagnosis.
type podGuard struct {
	pods     *nodePods
	rights   *admission.Rights
	store    pipeline.Store
	observer pipeline.Observer
}

// refuse is that of the reconciler.
func (g *podGuard) refuse(ctx context.Context, diagnosis *v1.Diagnosis) (refused bool, err error) {
	reason, message, err := g.check(ctx, diagnosis)
	if err != nil || reason == "" {
		return false, err
	}
	diagnosis = diagnosis.DeepCopy()
	now := metav1.Now()
	s := &diagnosis.Status
	s.Phase, s.Outcome, s.CompletionTime = v1.DiagnosisFailed, v1.OutcomeError, &now
	s.Target, s.Summary = diagnosis.Spec.Target(), message
	if s.StartTime == nil {
		s.StartTime = &now
	}
	for _, kind := range []string{v1.ConditionAccepted, v1.ConditionComplete} {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: diagnosis.Generation,
		})
	}
	printable.Fields(s)
	if err := g.store.Save(ctx, diagnosis); err != nil {
		return true, err
	}
	g.observer.Ended(diagnosis)
	return true, nil
}

// check says why a Diagnosis cannot run here; no reason if it can. One that was accepted goes on without its pod, but not with another spec: API
// servers before 1.25 let its author change the pod, and the steps that are done were about the first one.
func (g *podGuard) check(ctx context.Context, d *v1.Diagnosis) (reason, message string, err error) {
	ref, accepted := d.Spec.PodReference, meta.FindStatusCondition(d.Status.Conditions, v1.ConditionAccepted)
	switch {
	case accepted != nil && accepted.Status == metav1.ConditionTrue && accepted.ObservedGeneration != d.Generation:
		return v1.ReasonInvalid, fmt.Sprintf("spec: it was changed after the agent on node %s accepted the Diagnosis. Create another one", g.pods.node), nil
	case accepted != nil && accepted.Status == metav1.ConditionTrue, ref == nil:
		return "", "", nil
	}
	if why, err := g.rights.Refusal(ctx, d); err != nil || why != "" {
		return v1.ReasonPodInOtherNamespace, why, err
	}
	pod, err := g.pods.findPod(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	if errors.Is(err, kubelet.ErrPodNotFound) {
		return v1.ReasonPodNotFound, fmt.Sprintf("spec.podReference: Pod %s/%s does not exist", ref.Namespace, ref.Name), nil
	}
	if err != nil {
		return "", "", err
	}
	if pod.Spec.NodeName != g.pods.node {
		return v1.ReasonPodOnOtherNode, fmt.Sprintf("spec.podReference: Pod %s/%s is on node %q, this is node %q",
			ref.Namespace, ref.Name, pod.Spec.NodeName, g.pods.node), nil
	}
	return "", "", nil
}
