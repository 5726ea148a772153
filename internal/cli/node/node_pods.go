// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
)

// podRuntime is the container runtime as a source of pods.
type podRuntime interface {
	Sandboxes(ctx context.Context) ([]cri.Sandbox, error)
	PodContainers(ctx context.Context, podUID string) ([]cri.PodContainer, error)
}

// nodePods are the pods of this node without an API server: their specs come from a file, from the kubelet, or as far as it
// knows them from the container runtime. Only a pod with a directory of the kubelet is a pod of this node. The states of
// containers come from the runtime, if there is one.
type nodePods struct {
	node    *kubelet.Node
	name    string // of the node, which all pods are given
	specs   podFile
	runtime podRuntime // nil if there is none, or it does not answer

	mu   sync.Mutex
	seen map[string][]cri.PodContainer // by UID of the pod
}

// Pod returns the pod with that name. If several pods have the name, it is the pod that is not being deleted.
func (p *nodePods) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	all, err := p.listPods(ctx, func(o types.NamespacedName) bool { return o.Namespace == namespace && o.Name == name })
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		for _, pod := range p.specs {
			if pod != nil && pod.Namespace == namespace && pod.Name == name {
				return nil, fmt.Errorf("%w: %s/%s with UID %s has no directory of the kubelet here", kubelet.ErrPodNotFound, namespace, name, pod.UID)
			}
		}
		return nil, fmt.Errorf("%w: neither --pods, the kubelet nor the container runtime has %s/%s", kubelet.ErrPodNotFound, namespace, name)
	}
	stays := slices.IndexFunc(all, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })
	return all[max(stays, 0)], nil
}

// listPods returns the pods of this node whose names are wanted.
func (p *nodePods) listPods(ctx context.Context, wanted func(types.NamespacedName) bool) (all []*corev1.Pod, err error) {
	here, err := p.node.PodUIDs(ctx)
	if err != nil {
		return nil, err
	}
	for _, uid := range here {
		if pod := p.specs.PodByUID(uid); pod != nil && wanted(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
			pod, err := p.podFromFile(ctx, pod)
			if err != nil {
				return nil, err
			}
			all = append(all, pod)
		}
	}
	if p.runtime == nil {
		return all, nil
	}
	sandboxes, err := p.runtime.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes {
		_, known := p.specs[s.PodUID]
		if known || !s.Ready || !slices.Contains(here, s.PodUID) || !wanted(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}) {
			continue
		}
		pod, err := p.podFromRuntime(ctx, s)
		if err != nil {
			return nil, err
		}
		all = append(all, pod)
	}
	return all, nil
}

// containers are those of a pod in the runtime. A container whose record was removed is as it was before: the kubelet
// starts it again, so the pod still has it.
func (p *nodePods) containers(ctx context.Context, uid string) ([]cri.PodContainer, error) {
	now, err := p.runtime.PodContainers(ctx, uid)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, before := range p.seen[uid] {
		if !slices.ContainsFunc(now, func(c cri.PodContainer) bool { return c.Name == before.Name }) {
			now = append(now, before)
		}
	}
	if p.seen == nil {
		p.seen = map[string][]cri.PodContainer{}
	}
	p.seen[uid] = now
	return now, nil
}

// podFromFile is a pod of the file, with its containers as they are now.
func (p *nodePods) podFromFile(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = p.name
	if p.runtime == nil {
		return pod, nil
	}
	containers, err := p.containers(ctx, string(pod.UID))
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		for _, list := range []*[]corev1.ContainerStatus{
			&pod.Status.InitContainerStatuses, &pod.Status.ContainerStatuses, &pod.Status.EphemeralContainerStatuses,
		} {
			for i := range *list {
				if s := &(*list)[i]; s.Name == c.Name {
					now := containerStatusOf(c)
					s.State, s.ContainerID = now.State, now.ContainerID
				}
			}
		}
	}
	return pod, nil
}

// kubeletTimeout bounds the wait for the kubelet.
const kubeletTimeout = 3 * time.Second

// podsOfKubelet asks the kubelet for its pods, if it answers without a login. It never gives the proof that a pod is
// gone: a kubelet that has not heard from the API server since its start knows few of its pods.
func podsOfKubelet(ctx context.Context, n *kubelet.Node) (podFile, error) {
	port, err := n.ReadOnlyPort(ctx)
	if port == 0 || err != nil {
		return nil, err
	}
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/pods"
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true}, // with no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it redirects") },
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for pods: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the kubelet for pods: %s answers %s", address, response.Status)
	}
	pods, err := parsePods(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read pods of the kubelet: %w", err)
	}
	return pods, nil
}
