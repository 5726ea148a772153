// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/podinfo"
)

// newVolumes makes the judges of volumes, of directories of pods and of devices. There is one of each, for the sentinel and all
// processors, and one prober: it remembers which file systems hang, and bounds the processes that wait for them.
func (a *agent) newVolumes(ctx context.Context) (err error) {
	if err := follow(ctx, a.manager.GetCache(), &corev1.Pod{}, a.pods.replacePod); err != nil {
		return err
	}
	runtime := &cri.Client{Socket: a.runtimeSocket}
	// Not the prober's: a probe that hangs must not hold up the repair of others.
	prober, changes := &probe.Prober{Looks: probe.TwoLooks}, &subprocess.Runner{}
	a.volumes = &volume.Inspector{Kubelet: a.kubelet, Prober: probe.Twice{Prober: prober}, Pods: a.pods, Runtime: runtime, Runner: changes}
	a.watched = &volume.Inspector{Kubelet: a.kubelet, Prober: prober, Pods: a.pods, Runtime: runtime, Runner: changes}
	a.orphans = &orphan.Inspector{
		Kubelet: a.kubelet, Pods: a.pods, Runtime: runtime, Cache: a.pods, MinimumAge: a.options.OrphanMinimumAge,
	}
	runner := &subprocess.Runner{}
	a.devices = &device.Inspector{
		Kubelet: a.kubelet, Finder: &devholder.Finder{Runner: runner}, Runtime: runtime, Pods: a.pods, Claims: a.pods, Specs: a.pods, Runner: runner,
	}
	if a.connections, err = fuse.Open(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		a.manager.GetLogger().Error(err, "Could not read FUSE connections: dead ones are found by probes")
	}
	if a.connections != nil {
		a.closers = append(a.closers, a.connections.Close)
	}
	return nil
}

// runtimeSocket is where the runtime of our kubelet listens now.
func (a *agent) runtimeSocket(ctx context.Context) (string, error) {
	node, err := a.kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	return node.RuntimeSocket(ctx)
}

// Knows reports whether the cache has a pod of this UID, or a mirror pod that stands for it.
func (p *nodePods) Knows(uid string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.byUID[types.UID(uid)] != nil {
		return true
	}
	for _, pod := range p.byUID {
		if slices.Contains(orphan.UIDs(&pod.ObjectMeta), uid) {
			return true
		}
	}
	return false
}

// Bounds of the requests about the claims of one pod.
const (
	maxClaims     = 32
	claimsTimeout = 2 * time.Second
)

// PersistentVolumes returns the names of those that claims of a pod are bound to. A claim that cannot be read names none. One
// that is not bound may name any, because its owner writes that name.
func (p *nodePods) PersistentVolumes(ctx context.Context, pod *corev1.Pod) []string {
	ctx, cancel := context.WithTimeout(ctx, claimsTimeout)
	defer cancel()
	var names []string
	all := podinfo.Claims(pod)
	for _, name := range all[:min(len(all), maxClaims)] {
		claim := &corev1.PersistentVolumeClaim{}
		err := p.live.Get(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: name}, claim)
		if err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName != "" {
			names = append(names, claim.Spec.VolumeName)
		}
	}
	return names
}

// ClaimPaths reads where the PersistentVolumes lie that claims of a pod are bound to, if those are directories or files of the node.
func (p *nodePods) ClaimPaths(ctx context.Context, pod *corev1.Pod) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, claimsTimeout)
	defer cancel()
	paths := map[string]string{}
	for _, name := range p.PersistentVolumes(ctx, pod) {
		pv, err := p.PersistentVolume(ctx, name)
		if err != nil || pv == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != pod.Namespace {
			continue
		}
		switch {
		case pv.Spec.HostPath != nil:
			paths[name] = pv.Spec.HostPath.Path
		case pv.Spec.Local != nil:
			paths[name] = pv.Spec.Local.Path
		}
	}
	return paths
}

// podsPerPage is how many pods the API server is asked for at once. Without a bound, one before 1.31 takes all pods of
// the cluster into its memory to find those of one node. Tenants may put 1.5 MB into the metadata of each.
const podsPerPage = 8

// PodsNow lists the pods of this node as the API server has them now, with the metadata by which their directories are found.
func (p *nodePods) PodsNow(ctx context.Context) ([]metav1.ObjectMeta, error) {
	all, err := p.listNow(ctx, podsPerPage)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) { // between two pages: the version of the first is no longer kept
		all, err = p.listNow(ctx, podsPerPage)
	}
	if err != nil {
		return nil, fmt.Errorf("listing pods of node %q: %w", p.node, err)
	}
	return all, nil
}

// listNow lists them page by page, all as they were at the first.
func (p *nodePods) listNow(ctx context.Context, pageSize client.Limit) (all []metav1.ObjectMeta, err error) {
	err = kubeclient.EachPage(ctx, p.live, kubeclient.MetadataList("Pod"), func(page *metav1.PartialObjectMetadataList) {
		for _, item := range page.Items {
			all = append(all, orphan.Reduced(&item.ObjectMeta))
		}
	}, client.MatchingFields{"spec.nodeName": p.node}, pageSize)
	return all, err
}
