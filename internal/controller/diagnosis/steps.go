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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/podstatus"
)

// skip leaves alone what has ended or is going away, and records, which are not run.
func (r *Reconciler) skip(_ context.Context, v *visit) error {
	v.done = ended(v.was) || !v.was.DeletionTimestamp.IsZero() || v.was.Spec.Mode == v1.ModeRecord
	return nil
}

// validate refuses what the schema should have refused. API servers before 1.25 check no CEL rules.
func (r *Reconciler) validate(_ context.Context, v *visit) error {
	if started(v.was) {
		return nil
	}
	if errs := v.is.Spec.Validate(); len(errs) > 0 {
		r.refuse(v, v1.ReasonInvalid, v1.Message(errs))
	}
	return nil
}

// bind finds the node and names it in the label by which its agent watches. A Diagnosis that an agent has taken already
// gets its label back and nothing else.
func (r *Reconciler) bind(ctx context.Context, v *visit) error {
	if bound(v.was) {
		return nil
	}
	if !started(v.was) {
		if err := r.locate(ctx, v); err != nil || v.done {
			return err
		}
	}
	if v.is.Spec.NodeName == "" {
		v.done = true // an older release left it running nowhere
		return nil
	}
	if v.is.Labels == nil {
		v.is.Labels = map[string]string{}
	}
	v.is.Labels[v1.LabelNode], v.is.Labels[v1.LabelOrigin] = v1.NodeLabelValue(v.is.Spec.NodeName), originOf(v.is)
	v.again, v.done = r.Agents.CheckEvery, true
	return nil
}

// originOf is who asked for a Diagnosis that is to be run. Only the manager makes those of Triggers and policies, and it says so at
// once.
func originOf(d *v1.Diagnosis) string {
	origin := d.Labels[v1.LabelOrigin]
	if origin == v1.OriginTrigger && d.Labels[v1.LabelTrigger] != "" || origin == v1.OriginPolicy && ofPolicy(&d.Spec) {
		return origin
	}
	return v1.OriginPerson
}

// ofPolicy reports whether policies ask for such a Diagnosis. They leave repairs to the agents, but not evictions.
func ofPolicy(s *v1.DiagnosisSpec) bool {
	return s.Mode == v1.ModeApprove || s.Mode == v1.ModePlan || s.Mode == v1.ModeRecover && s.OperationSet == v1.EvictOperationSet
}

// locate fills in spec.nodeName, or refuses, or waits.
func (r *Reconciler) locate(ctx context.Context, v *visit) error {
	ref := v.is.Spec.PodReference
	if ref == nil {
		return r.checkNode(ctx, v)
	}
	var pod corev1.Pod
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		r.refuse(v, v1.ReasonPodNotFound, fmt.Sprintf("spec.podReference: Pod %s/%s does not exist", ref.Namespace, ref.Name))
	case err != nil:
		return fmt.Errorf("reading pod %s/%s: %w", ref.Namespace, ref.Name, err)
	case !hasContainer(&pod, ref.Container):
		missing := field.NotFound(field.NewPath("spec", "podReference", "container"), ref.Container)
		r.refuse(v, v1.ReasonInvalid, missing.Error()+fmt.Sprintf(": Pod %s/%s has no such container", ref.Namespace, ref.Name))
	case pod.Spec.NodeName == "" && r.unscheduled(v, &pod):
	case pod.Spec.NodeName == "":
		r.wait(v, v1.ReasonPodNotScheduled, fmt.Sprintf("Pod %s/%s is not scheduled to a node yet", ref.Namespace, ref.Name))
	case v.is.Spec.NodeName != "" && v.is.Spec.NodeName != pod.Spec.NodeName:
		r.refuse(v, v1.ReasonPodOnOtherNode, fmt.Sprintf("spec.nodeName: Pod %s/%s is on node %q, not on %q",
			ref.Namespace, ref.Name, pod.Spec.NodeName, v.is.Spec.NodeName))
	default:
		v.is.Spec.NodeName = pod.Spec.NodeName
	}
	return nil
}

// unscheduled ends a Diagnosis that looks for every fault, if the scheduler has said why the pod has no node: it has no
// mount anywhere.
func (r *Reconciler) unscheduled(v *visit, pod *corev1.Pod) bool {
	if v.is.Spec.Set() != v1.DefaultOperationSet || len(podstatus.Why(pod, "")) == 0 {
		return false
	}
	r.clear(v, podstatus.Sentence(pod, ""))
	return true
}

func (r *Reconciler) checkNode(ctx context.Context, v *visit) error {
	exists, err := r.nodeExists(ctx, v.is.Spec.NodeName)
	if err == nil && !exists {
		r.refuseNode(v)
	}
	return err
}

// nodeExists asks for the metadata only: a Node is large.
func (r *Reconciler) nodeExists(ctx context.Context, name string) (bool, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, node)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading node %q: %w", name, err)
	}
	return err == nil, nil
}

// follow looks after a bound Diagnosis: whether the agent that has it, or should take it, is alive.
func (r *Reconciler) follow(ctx context.Context, v *visit) error {
	agent, err := r.Agents.look(ctx, v.is.Spec.NodeName)
	if err != nil {
		return err
	}
	v.again = r.Agents.CheckEvery
	if agent.Alive {
		r.resume(v)
		return nil
	}
	exists, err := r.nodeExists(ctx, v.is.Spec.NodeName)
	switch {
	case err != nil:
		return err
	case !exists:
		r.refuseNode(v)
	case !started(v.was):
		r.wait(v, v1.ReasonNoAgent, agent.String())
	case agent.Lost:
		r.lose(v, agent.String())
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

// ended reports whether the phase is final.
func ended(d *v1.Diagnosis) bool {
	return d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed
}

// started reports whether an agent has taken the Diagnosis.
func started(d *v1.Diagnosis) bool {
	return d.Status.Phase != "" && d.Status.Phase != v1.DiagnosisPending
}

// bound reports whether the agent of the node can see the Diagnosis.
func bound(d *v1.Diagnosis) bool {
	return d.Spec.NodeName != "" && d.Labels[v1.LabelNode] == v1.NodeLabelValue(d.Spec.NodeName)
}

// backoff is how long to wait after having waited since then.
func (r *Reconciler) backoff(since metav1.Time) time.Duration {
	return min(max(r.Clock.Since(since.Time), minWait), maxWait)
}
