// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/builtin"
)

// nodesAtOnce is how many nodes one request lists.
const nodesAtOnce = 500

// target is what one Diagnosis is about.
type target struct {
	node string
	pod  *v1.PodReference
}

// key names a target among those of a Trigger. The node of a pod is left out: the manager fills it in.
func (t target) key(trigger string) string {
	if t.pod != nil {
		return trigger + " pod " + t.pod.Namespace + "/" + t.pod.Name
	}
	return trigger + " node " + t.node
}

// targets finds what the Diagnoses of a cause are about: the pod, the node, or the nodes that the Trigger selects.
func (d *Dispatcher) targets(ctx context.Context, t *v1.Trigger, cause *Cause) ([]target, error) {
	switch {
	case cause.Pod != nil:
		return d.podTarget(ctx, cause)
	case cause.Node != "":
		return d.nodeTarget(ctx, cause, cause.Node)
	case t.Spec.NodeName != "":
		return d.nodeTarget(ctx, cause, t.Spec.NodeName)
	case t.Spec.NodeSelector != nil:
		return d.selected(ctx, t, cause)
	}
	return nil, reject(cause, v1.ReasonNoNode, "neither the signal nor the Trigger names a pod or a node")
}

func (d *Dispatcher) podTarget(ctx context.Context, cause *Cause) ([]target, error) {
	var pod corev1.Pod
	err := d.Reader.Get(ctx, client.ObjectKey{Namespace: cause.Pod.Namespace, Name: cause.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && !is(&pod, cause.PodUID):
		return nil, reject(cause, v1.ReasonPodNotFound, "Pod %s/%s does not exist any more", cause.Pod.Namespace, cause.Pod.Name)
	case err != nil:
		return nil, fmt.Errorf("reading pod %s/%s: %w", cause.Pod.Namespace, cause.Pod.Name, err)
	case cause.Node != "" && pod.Spec.NodeName != "" && pod.Spec.NodeName != cause.Node:
		return nil, reject(cause, v1.ReasonPodOnOtherNode, "Pod %s/%s is on node %q, not on %q",
			cause.Pod.Namespace, cause.Pod.Name, pod.Spec.NodeName, cause.Node)
	}
	return []target{{node: pod.Spec.NodeName, pod: cause.Pod}}, nil
}

// is reports whether a signal about a pod of this UID is about this pod. Kubelets know a static pod by the digest of
// its file.
func is(pod *corev1.Pod, uid types.UID) bool {
	return uid == "" || pod.UID == uid || pod.Annotations["kubernetes.io/config.hash"] == string(uid)
}

// nodeTarget asks for the metadata only: a Node is large.
func (d *Dispatcher) nodeTarget(ctx context.Context, c *Cause, name string) ([]target, error) {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := d.Reader.Get(ctx, client.ObjectKey{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, reject(c, v1.ReasonNodeNotFound, "Node %q does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("reading node %q: %w", name, err)
	}
	return []target{{node: name}}, nil
}

// selected lists the nodes that the Trigger selects, in pages and without their status.
func (d *Dispatcher) selected(ctx context.Context, t *v1.Trigger, cause *Cause) ([]target, error) {
	selector, err := metav1.LabelSelectorAsSelector(t.Spec.NodeSelector)
	if err != nil {
		return nil, reject(cause, v1.ReasonNoNode, "spec.nodeSelector: %v", err)
	}
	var found []target
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	for {
		err := d.Reader.List(ctx, list, client.MatchingLabelsSelector{Selector: selector},
			client.Limit(nodesAtOnce), client.Continue(list.Continue))
		if err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		for i := range list.Items {
			found = append(found, target{node: list.Items[i].Name})
		}
		if list.Continue == "" {
			break
		}
	}
	if len(found) == 0 {
		return nil, reject(cause, v1.ReasonNoNode, "spec.nodeSelector selects no node")
	}
	return found, nil
}

// notYet is a Rejection for what may be there soon: a Trigger and its OperationSet are often applied together.
func notYet(c *Cause, reason, format string, args ...any) *Rejection {
	r := reject(c, reason, format, args...)
	r.passes = true
	return r
}

// declared refuses a cause whose OperationSet cannot be used, or that has parameters which no Operation of the set
// declares.
func (d *Dispatcher) declared(ctx context.Context, t *v1.Trigger, cause *Cause) error {
	set := &v1.OperationSet{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: t.Spec.OperationSet}, set)
	switch {
	case apierrors.IsNotFound(err):
		return notYet(cause, v1.ReasonOperationSetNotFound, "there is no OperationSet %q", t.Spec.OperationSet)
	case err != nil:
		return fmt.Errorf("reading operation set %q: %w", t.Spec.OperationSet, err)
	case !meta.IsStatusConditionTrue(set.Status.Conditions, v1.ConditionReady):
		return notYet(cause, v1.ReasonOperationSetNotReady, "OperationSet %q is not ready", set.Name)
	}
	if len(cause.Parameters) == 0 {
		return nil
	}
	var known []string
	for _, n := range set.Spec.AdjacencyList {
		if n.Operation == "" {
			continue
		}
		op := &v1.Operation{}
		err := d.Client.Get(ctx, client.ObjectKey{Name: n.Operation}, op)
		if err != nil {
			return fmt.Errorf("reading operation %q: %w", n.Operation, err)
		}
		known = append(known, declaredBy(op)...)
	}
	for _, key := range slices.Sorted(maps.Keys(cause.Parameters)) {
		if !slices.Contains(known, key) {
			return reject(cause, v1.ReasonParameterNotDeclared, "no Operation of OperationSet %q declares the parameter %q", set.Name, key)
		}
	}
	return nil
}

// declaredBy lists the parameters that an Operation reads: those of its built-in processor, the arguments of its
// script, and those that it declares itself.
func declaredBy(op *v1.Operation) []string {
	call, errs := op.Spec.Call()
	if len(errs) > 0 {
		return nil
	}
	known := slices.Concat(op.Spec.Parameters, builtin.Parameters(call.BuiltIn))
	if call.Script != nil {
		known = append(known, call.Script.ArgKeys...)
	}
	return known
}
