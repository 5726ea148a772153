// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// target is the node or the pod of one Diagnosis.
type target struct {
	node string
	pod  *v1.PodReference
}

// key names a target among those of a Trigger. The node of a pod is left out: the manager fills it in.
func (t target) key(trigger types.UID) string {
	if t.pod != nil {
		return string(trigger) + " pod " + t.pod.Namespace + "/" + t.pod.Name
	}
	return string(trigger) + " node " + t.node
}

// findTargets returns the targets of the Diagnoses of a cause: the pod, the node, or the nodes that the Trigger selects, which are listed
// in pages and without their status.
func (d *Dispatcher) findTargets(ctx context.Context, t *v1.Trigger, cause *Cause) ([]target, error) {
	switch {
	case cause.Pod != nil:
	case cause.Node != "":
		return d.nodeTarget(ctx, cause.Node)
	case t.Spec.NodeName != "":
		return d.nodeTarget(ctx, t.Spec.NodeName)
	case t.Spec.NodeSelector == nil:
		return nil, Reject(v1.ReasonNoNode, "neither the signal nor the Trigger names a pod or a node")
	default:
		selector, err := metav1.LabelSelectorAsSelector(t.Spec.NodeSelector)
		if err != nil {
			return nil, Reject(v1.ReasonNoNode, "spec.nodeSelector: %v", err)
		}
		var found []target
		err = kubeclient.EachPage(ctx, d.Reader, kubeclient.MetadataList("Node"), func(page *metav1.PartialObjectMetadataList) {
			for i := range page.Items {
				found = append(found, target{node: page.Items[i].Name})
			}
		}, client.MatchingLabelsSelector{Selector: selector})
		if err != nil {
			return nil, fmt.Errorf("listing nodes: %w", err)
		}
		if len(found) == 0 {
			return nil, Reject(v1.ReasonNoNode, "spec.nodeSelector selects no node")
		}
		return found, nil
	}
	var pod corev1.Pod
	err := d.Reader.Get(ctx, client.ObjectKey{Namespace: cause.Pod.Namespace, Name: cause.Pod.Name}, &pod)
	// Kubelets know a static pod by the digest of its file.
	same := cause.PodUID == "" || pod.UID == cause.PodUID || pod.Annotations["kubernetes.io/config.hash"] == string(cause.PodUID)
	switch {
	case apierrors.IsNotFound(err), err == nil && !same:
		return nil, Reject(v1.ReasonPodNotFound, "Pod %s/%s does not exist any more", cause.Pod.Namespace, cause.Pod.Name)
	case err != nil:
		return nil, fmt.Errorf("reading pod %s/%s: %w", cause.Pod.Namespace, cause.Pod.Name, err)
	case cause.Node != "" && pod.Spec.NodeName != "" && pod.Spec.NodeName != cause.Node:
		return nil, Reject(v1.ReasonPodOnOtherNode, "Pod %s/%s is on node %q, not on %q",
			cause.Pod.Namespace, cause.Pod.Name, pod.Spec.NodeName, cause.Node)
	}
	return []target{{node: pod.Spec.NodeName, pod: cause.Pod}}, nil
}

func (d *Dispatcher) nodeTarget(ctx context.Context, name string) ([]target, error) {
	absent, err := kubeclient.NodeAbsent(ctx, d.Reader, name)
	switch {
	case err != nil:
		return nil, err
	case absent:
		return nil, Reject(v1.ReasonNodeNotFound, "Node %q does not exist", name)
	}
	return []target{{node: name}}, nil
}
