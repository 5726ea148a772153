// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// searched answers the searches of this node, without a kubelet and specs of pods.
func (a *agent) searched(prober faults.Prober) searches.Node {
	return searches.Node{
		Devices: a.devices, Prober: prober, Runtime: &cri.Client{Socket: a.runtimeSocket}, ClaimPaths: a.pods.ClaimPaths, Attachments: a.pods,
	}
}

// looks are the searches that the sentinel makes from time to time. They are those of a scan.
func (a *agent) looks() map[fault.Search]mountstate.Inspector {
	node := a.searched(a.watched.Prober)
	all := map[fault.Search]mountstate.Inspector{}
	for _, s := range searches.All() {
		switch s.Kind {
		case fault.SearchSources, fault.SearchDevices:
			node.Specs = somePods{a.pods, func(pod *corev1.Pod) bool { return len(podinfo.Unstarted(pod, "")) > 0 }}
		case fault.SearchLeaving:
			node.Specs = somePods{a.pods, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil }}
		case fault.SearchStacks: // whose a staging path is, all of them say
			node.Specs = somePods{a.pods, func(*corev1.Pod) bool { return true }}
		default:
			continue
		}
		all[s.Kind] = nodeLook{s, a.kubelet, node}
	}
	return all
}

// nodeLook makes a search on this node.
type nodeLook struct {
	search  searches.Search
	kubelet kubelet.Locator
	node    searches.Node // without the kubelet
}

// Look makes the search with the kubelet of the moment.
func (l nodeLook) Look(ctx context.Context, s mountstate.Scope) (mountstate.Survey, error) {
	node, err := l.kubelet.Node(ctx)
	if err != nil {
		return mountstate.Survey{}, err
	}
	l.node.Kubelet, l.node.PodUIDs = node, node.PodUIDs
	return l.search.On(l.node).Look(ctx, s)
}

// somePods are the pods of this node that a search is about. Pods all of whose containers are started have got their sources.
type somePods struct {
	*nodePods
	about func(*corev1.Pod) bool
}

// Listed are those that the search is about.
func (s somePods) Listed() []*corev1.Pod {
	return slices.DeleteFunc(s.PodsHere(), func(pod *corev1.Pod) bool { return !s.about(pod) })
}
