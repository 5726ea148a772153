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
	"kubediag.org/kubediag/internal/sentinel"
)

// searched answers the searches of this node, without a kubelet and specs of pods.
func (a *agent) searched(prober faults.Prober) searches.Node {
	return searches.Node{
		Devices: a.devices, Prober: prober, Runtime: &cri.Client{Socket: a.runtimeSocket}, ClaimPaths: a.pods.ClaimPaths, Attachments: a.pods,
	}
}

// looks are the searches that the sentinel makes from time to time. They are those of a scan.
func (a *agent) looks() map[fault.Search]sentinel.Look {
	node := a.searched(a.watched.Prober)
	all := map[fault.Search]sentinel.Look{}
	for _, s := range searches.All() {
		if s.Every > 0 {
			node.Specs = somePods{a.pods, s.About}
			all[s.Kind] = sentinel.Look{Inspector: nodeLook{s, a.kubelet, node}, Every: s.Every}
		}
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

// somePods are the pods of this node that a search is about.
type somePods struct {
	*nodePods
	about func(*corev1.Pod) bool // nil: all
}

// Listed are those that the search is about.
func (s somePods) Listed() []*corev1.Pod {
	return slices.DeleteFunc(s.PodsHere(), func(pod *corev1.Pod) bool { return s.about != nil && !s.about(pod) })
}
