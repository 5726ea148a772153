// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/kubelet"
)

// nodePods gives out the pods of one node.
type nodePods struct {
	node string
	// cache has the pods of the node, live those of the cluster.
	cache, live client.Reader
}

// Pod returns a pod of this node. The cache may be behind; before a pod is called missing the API server is asked.
func (p *nodePods) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := p.findPod(ctx, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName != p.node {
		return nil, fmt.Errorf("%w: pod %s/%s is on node %q, this is %q", kubelet.ErrPodNotFound, namespace, name, pod.Spec.NodeName, p.node)
	}
	return pod, nil
}

// FreshPod is Pod as the API server has it now.
func (p *nodePods) FreshPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := p.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func (p *nodePods) findPod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
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

// podIndex has the pods of the node by UID.
type podIndex struct {
	mu    sync.RWMutex
	byUID map[types.UID]*corev1.Pod
}

// newPodIndex follows the pods that the cache has.
func newPodIndex(ctx context.Context, c cache.Cache) (*podIndex, error) {
	informer, err := c.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	p := &podIndex{byUID: map[types.UID]*corev1.Pod{}}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.replacePod(nil, obj) },
		UpdateFunc: p.replacePod,
		DeleteFunc: func(obj any) { p.replacePod(obj, nil) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	return p, nil
}

// replacePod replaces one pod by another. Between two looks at the API server a pod may have been replaced by its
// namesake.
func (p *podIndex) replacePod(before, now any) {
	if tombstone, ok := before.(toolscache.DeletedFinalStateUnknown); ok {
		before = tombstone.Obj
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod, ok := before.(*corev1.Pod); ok {
		delete(p.byUID, pod.UID)
	}
	if pod, ok := now.(*corev1.Pod); ok {
		p.byUID[pod.UID] = pod
	}
}

// PodsHere lists the pods that the cache has; the caller does not change them.
func (p *podIndex) PodsHere() []*corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Values(p.byUID))
}

// PodByUID returns the pod that the cache has; the caller does not change it.
func (p *podIndex) PodByUID(uid string) *corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byUID[types.UID(uid)]
}
