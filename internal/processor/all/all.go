// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package all is the one list of the processors that kubediag brings with it. It holds no logic of its own: it hands
// each processor what it needs.
package all

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/collector/mountinfo"
	"kubediag.org/kubediag/internal/processor/collector/poddetail"
	diagnose "kubediag.org/kubediag/internal/processor/diagnoser/subpathremount"
	remount "kubediag.org/kubediag/internal/processor/recoverer/subpathremount"
)

// Kubelet finds the kubelet of this node: a kubelet.Finder, or a kubelet.Node where it is known.
type Kubelet interface {
	Node(ctx context.Context) (*kubelet.Node, error)
}

// Deps is what processors need.
type Deps struct {
	Pods    kubelet.Pods
	Kubelet Kubelet
	// Runtime is the container runtime. Nil: the one that the kubelet uses.
	Runtime remount.Runtime
}

// New makes the registry of all built-in processors.
func New(d Deps) (*processor.Registry, error) {
	if d.Runtime == nil {
		d.Runtime = &cri.Client{Socket: d.socket}
	}
	return processor.NewRegistry(
		processor.Step{Processor: &poddetail.Collector{Pods: d.Pods}},
		processor.Step{Processor: &mountinfo.Collector{Kubelet: d.Kubelet}},
		processor.Step{Processor: &diagnose.Diagnoser{Pods: d.Pods, Kubelet: d.Kubelet}},
		processor.Step{Recoverer: &remount.Recoverer{Pods: d.Pods, Kubelet: d.Kubelet, Runtime: d.Runtime}},
	)
}

// socket is where the runtime of our kubelet listens now.
func (d Deps) socket(ctx context.Context) (string, error) {
	n, err := d.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	return n.RuntimeSocket()
}
