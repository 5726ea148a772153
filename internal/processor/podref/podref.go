// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package podref finds the pod that a request names, and says why this node has nothing of it if that is so. Every
// processor that is about one pod calls it first.
package podref

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
)

// Get returns the pod that a request names, as it is now, wherever it runs. A request that names no pod, or none that
// exists, gives an error that is not worth another try.
func Get(ctx context.Context, pods kubelet.Pods, request processor.Request) (*corev1.Pod, error) {
	if request.Pod.Namespace == "" || request.Pod.Name == "" {
		return nil, processor.Stalled(fmt.Errorf("read podReference: namespace is %q and name is %q, both must be set",
			request.Pod.Namespace, request.Pod.Name))
	}
	pod, err := pods.Pod(ctx, request.Pod.Namespace, request.Pod.Name)
	if err != nil {
		err = fmt.Errorf("get pod %s/%s: %w", request.Pod.Namespace, request.Pod.Name, err)
	}
	if errors.Is(err, kubelet.ErrPodNotFound) {
		err = processor.Stalled(err)
	}
	return pod, err
}

// Load is Get that also checks the container of the request. elsewhere, if it is not empty, says why there is nothing of
// the pod to be seen on this node.
func Load(ctx context.Context, pods kubelet.Pods, request processor.Request) (pod *corev1.Pod, elsewhere string, err error) {
	if pod, err = Get(ctx, pods, request); err != nil {
		return nil, "", err
	}
	if pod.UID == "" {
		return nil, "", processor.Stalled(fmt.Errorf("get pod %s/%s: it has no UID", pod.Namespace, pod.Name))
	}
	if request.Pod.Container != "" && !podinfo.HasContainer(pod, request.Pod.Container) {
		return nil, "", processor.Stalled(fmt.Errorf("read podReference: pod %s/%s has no container %q", pod.Namespace, pod.Name,
			request.Pod.Container))
	}
	name := pod.Namespace + "/" + pod.Name
	switch {
	case pod.Spec.NodeName == "":
		elsewhere = fmt.Sprintf("pod %s is not bound to a node yet: it has no mounts", name)
	case pod.Spec.NodeName != request.Node:
		elsewhere = fmt.Sprintf("pod %s runs on node %q, and this is node %q", name, pod.Spec.NodeName, request.Node)
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		// The kubelet's directory for it has the UID of a file on the node. An annotation could say which, but
		// any user may write annotations.
		elsewhere = fmt.Sprintf("pod %s mirrors a static pod, whose directories have another UID: they are not looked at", name)
	}
	return pod, elsewhere, nil
}
