// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hashAnnotation has the UID by which the kubelet knows a static pod, as the annotation of a mirror pod has.
const hashAnnotation = "kubernetes.io/config.hash"

// maxSandboxes is from how many sandboxes on a list may not be whole: package cri lists no more.
const maxSandboxes = 10_000

// maxUIDBytes bounds a UID that can name a directory.
const maxUIDBytes = 255

// serverUID is what an API server gives pods for a UID. The UID of a static pod has no dashes, unless a user chose one.
var serverUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// podSources is what the API server and the runtime know of the pods.
type podSources struct {
	server, runtime map[string]bool // UIDs; nil if it was not asked, or could not be
	unavailable     []string
}

// askSources asks both. To ask the API server costs it a look at all pods of the cluster: so that is done only if it
// decides about one of the open pods, and the runtime neither knows all of these nor is silent.
func (i *Inspector) askSources(ctx context.Context, open []string) podSources {
	var s podSources
	var silent error
	s.runtime, silent = i.askRuntime(ctx)
	open = slices.DeleteFunc(slices.Clone(open), func(uid string) bool { return s.runtime[uid] })
	if i.Cache == nil || len(open) > 0 && silent == nil {
		var err error
		if s.server, err = i.askServer(ctx); err != nil {
			s.unavailable = append(s.unavailable, "the API server could not be asked: "+err.Error())
		}
		s.runtime, silent = i.askRuntime(ctx) // again: what has been deleted since may have a sandbox by now
	}
	if silent != nil {
		s.unavailable = append(s.unavailable, "the container runtime could not be asked: "+silent.Error())
	}
	// The runtime of another node knows no pod of this one. If the API server was not asked, its pods in the cache count.
	if len(s.unavailable) == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(s.runtime)), func(uid string) bool {
		return s.server[uid] || s.server == nil && i.inCache(uid)
	}) {
		s.unavailable = append(s.unavailable, "the API server and the container runtime know no pod in common, so they may speak of different nodes")
	}
	if s.server != nil && len(s.unavailable) == 0 {
		i.confirmedGone.remember(open, s.server)
	}
	return s
}

// goneCache are the UIDs that have a directory on this node, and that the API server was asked for and did not have.
//
// It is kept because an agent surveys every ten minutes: each node with a directory that is left would cost the API
// server a look at all pods of the cluster each time.
//
// They need not be asked for again. A pod is bound to a node before the kubelet there makes its directory, and for
// good; so one that has a directory and is not among the node's pods is deleted, and a UID is given once. It could come
// back only by a backup of the API server's data, or with a static pod for which a user chose the UID. The cache, the
// runtime and the mounts still show such a pod, and they are asked each time.
type goneCache struct {
	mu   sync.Mutex
	uids map[string]bool
}

// remember takes what the API server has said when it was asked for these.
func (a *goneCache) remember(uids []string, server map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uids == nil {
		a.uids = map[string]bool{}
	}
	for _, uid := range uids {
		a.uids[uid] = true
	}
	maps.DeleteFunc(a.uids, func(uid string, _ bool) bool { return server[uid] })
}

func (a *goneCache) contains(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.uids[uid]
}

// retainOnly forgets all but these, which are in order.
func (a *goneCache) retainOnly(uids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.uids, func(uid string, _ bool) bool { _, found := slices.BinarySearch(uids, uid); return !found })
}

func (i *Inspector) askServer(ctx context.Context) (map[string]bool, error) {
	if i.Pods == nil {
		return nil, errors.New("there is no connection to it")
	}
	pods, err := i.Pods.PodsNow(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, pod := range pods {
		for _, uid := range UIDs(&pod) {
			known[uid] = true
		}
	}
	delete(known, "")
	return known, nil
}

// UIDs are those that a pod of the API server has or, as a mirror pod, stands for; some may be empty.
func UIDs(pod *metav1.ObjectMeta) []string {
	return []string{string(pod.UID), pod.Annotations[corev1.MirrorPodAnnotationKey], pod.Annotations[hashAnnotation]}
}

// Reduced is the metadata of a pod without all that UIDs does not read, but for its name. Too long a UID names no
// directory.
func Reduced(pod *metav1.ObjectMeta) metav1.ObjectMeta {
	kept := metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: map[string]string{}}
	for _, key := range []string{corev1.MirrorPodAnnotationKey, hashAnnotation} {
		if uid := pod.Annotations[key]; uid != "" && len(uid) <= maxUIDBytes {
			kept.Annotations[key] = uid
		}
	}
	return kept
}

// inCache reports whether the cache knows the pod.
func (i *Inspector) inCache(uid string) bool {
	return i.Cache != nil && uid != "" && i.Cache.Knows(uid)
}

func (i *Inspector) askRuntime(ctx context.Context) (map[string]bool, error) {
	if i.Runtime == nil {
		return nil, errors.New("none is known")
	}
	sandboxes, err := i.Runtime.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	if len(sandboxes) >= maxSandboxes {
		return nil, fmt.Errorf("it has at least %d sandboxes, so its list may be incomplete", maxSandboxes)
	}
	known := map[string]bool{}
	for _, s := range sandboxes {
		known[s.PodUID] = true
	}
	return known, nil
}

// containerDoubts says for each pod, if there is anything to say, why it is not proven that it has no container. A
// runtime removes containers with their sandbox; one may have been removed behind its back.
func (i *Inspector) containerDoubts(ctx context.Context, uids []string, from podSources) map[string]string {
	why := map[string]string{}
	if from.runtime == nil {
		return why // which is said already
	}
	for _, uid := range uids {
		records, err := i.Runtime.PodRecords(ctx, uid)
		switch {
		case err != nil:
			why[uid] = "the container runtime could not be asked for its containers: " + err.Error()
		case len(records) > 0:
			why[uid] = fmt.Sprintf("the container runtime has a container %q of that pod", records[0].Name)
		}
	}
	return why
}
