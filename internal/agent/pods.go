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

	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/kubelet"
)

// nodePods gives out the pods of one node.
type nodePods struct {
	node string
	// cache has the pods of the node, live those of the cluster.
	cache, live client.Reader

	mu    sync.RWMutex
	byUID map[types.UID]*corev1.Pod // of the cache
	large *largePods                // nil: those that are too large stay names
}

// Pod returns a pod of this node, as far as the cache keeps it. The cache may be behind; before a pod is called missing the API server
// is asked.
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
	if apierrors.IsNotFound(err) || err == nil && extract.Large(pod) {
		pod = &corev1.Pod{}
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

// follow calls changed with each object of a kind that the cache gets, changes or loses: as it was before, and as it is
// now. Either is nil if there is none.
func follow[T client.Object](ctx context.Context, c cache.Cache, kind T, changed func(before, now T)) error {
	informer, err := c.GetInformer(ctx, kind)
	if err == nil {
		_, err = informer.AddEventHandler(changes(changed))
	}
	if err != nil {
		return fmt.Errorf("watching %T: %w", kind, err)
	}
	return nil
}

func changes[T client.Object](changed func(before, now T)) toolscache.ResourceEventHandler {
	object := func(of any) T {
		if tombstone, ok := of.(toolscache.DeletedFinalStateUnknown); ok {
			of = tombstone.Obj
		}
		found, _ := of.(T)
		return found
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { changed(object(nil), object(now)) },
		UpdateFunc: func(before, now any) { changed(object(before), object(now)) },
		DeleteFunc: func(before any) { changed(object(before), object(nil)) },
	}
}

// replacePod replaces one pod by another. Between two looks at the API server a pod may have been replaced by its
// namesake.
func (p *nodePods) replacePod(before, now *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byUID == nil {
		p.byUID = map[types.UID]*corev1.Pod{}
	}
	if before != nil {
		delete(p.byUID, before.UID)
		if p.large != nil {
			p.large.free(before.UID)
		}
	}
	if now != nil {
		p.byUID[now.UID] = now
		if p.large != nil && extract.Large(now) {
			p.large.queue.Add(largePod{client.ObjectKeyFromObject(now), now.UID})
		}
	}
}

// PodsHere lists the pods that the cache has; the caller does not change them.
func (p *nodePods) PodsHere() []*corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return slices.Collect(maps.Values(p.byUID))
}

// PodByUID returns the pod that the cache has; the caller does not change it.
func (p *nodePods) PodByUID(uid string) *corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byUID[types.UID(uid)]
}
