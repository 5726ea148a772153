// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package all is the one list of the processors that kubediag brings with it. It holds no logic of its own: it hands
// each processor what it needs.
package all

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/device"
	"kubediag.org/kubediag/internal/linux/holder"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/collector/blockdevice"
	"kubediag.org/kubediag/internal/processor/collector/mountinfo"
	"kubediag.org/kubediag/internal/processor/collector/mountnamespace"
	"kubediag.org/kubediag/internal/processor/collector/poddetail"
	"kubediag.org/kubediag/internal/processor/diagnoser/helddevice"
	diagnose "kubediag.org/kubediag/internal/processor/diagnoser/subpathremount"
	release "kubediag.org/kubediag/internal/processor/recoverer/helddevice"
	"kubediag.org/kubediag/internal/processor/recoverer/idledevice"
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
	// Owners tells whose processes are whose. Nil: the container runtime that the kubelet uses.
	Owners device.Runtime
}

// New makes the registry of all built-in processors.
func New(d Deps) (*processor.Registry, error) {
	runtime := &cri.Client{Socket: d.socket}
	if d.Runtime == nil {
		d.Runtime = runtime
	}
	if d.Owners == nil {
		d.Owners = runtime
	}
	scanner := mountns.NewScanner() // what it remembers serves all
	inspector := &device.Inspector{
		Kubelet: d.Kubelet, Finder: &holder.Finder{Scanner: scanner}, Runtime: d.Owners, Pods: d.Pods,
	}
	return processor.NewRegistry(
		processor.Step{Processor: &poddetail.Collector{Pods: d.Pods}},
		processor.Step{Processor: &mountinfo.Collector{Kubelet: d.Kubelet}},
		processor.Step{Processor: &mountnamespace.Collector{Scanner: scanner}},
		processor.Step{Processor: &blockdevice.Collector{Kubelet: d.Kubelet, Scanner: scanner}},
		processor.Step{Processor: &helddevice.Diagnoser{Inspector: inspector}},
		processor.Step{Recoverer: &release.Recoverer{Inspector: inspector}},
		processor.Step{Recoverer: &idledevice.Recoverer{Inspector: inspector}},
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
