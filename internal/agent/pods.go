// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/kubelet"
)

// pods gives out the pods of one node.
type pods struct {
	node string
	// cache has the pods of the node, live those of the cluster.
	cache, live client.Reader
}

// Pod gives a pod of this node. The cache may be behind; before a pod is called missing the API server is asked.
func (p *pods) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := p.find(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName != p.node {
		return nil, fmt.Errorf("%w: pod %s/%s is on node %q, this is %q", kubelet.ErrPodNotFound, namespace, name, pod.Spec.NodeName, p.node)
	}
	return pod, nil
}

func (p *pods) find(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.cache.Get(ctx, key, pod)
	if apierrors.IsNotFound(err) {
		err = p.live.Get(ctx, key, pod)
	}
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %s", kubelet.ErrPodNotFound, key)
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", key, err)
	}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return pod, nil
}
