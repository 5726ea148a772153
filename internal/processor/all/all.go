// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package all is the one list of the processors that kubediag brings with it. It holds no logic of its own: it hands
// each processor what it needs.
package all

import (
	"context"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/auto"
	"kubediag.org/kubediag/internal/processor/collector/blockdevice"
	"kubediag.org/kubediag/internal/processor/collector/mountinfo"
	"kubediag.org/kubediag/internal/processor/collector/mountnamespace"
	listorphans "kubediag.org/kubediag/internal/processor/collector/orphanedpod"
	"kubediag.org/kubediag/internal/processor/collector/poddetail"
	listvolumes "kubediag.org/kubediag/internal/processor/collector/volumehealth"
	"kubediag.org/kubediag/internal/processor/diagnoser/helddevice"
	diagnose "kubediag.org/kubediag/internal/processor/diagnoser/subpathremount"
	"kubediag.org/kubediag/internal/processor/diagnoser/volumehealth"
	release "kubediag.org/kubediag/internal/processor/recoverer/helddevice"
	"kubediag.org/kubediag/internal/processor/recoverer/idledevice"
	"kubediag.org/kubediag/internal/processor/recoverer/orphanedpod"
	"kubediag.org/kubediag/internal/processor/recoverer/podevict"
	remount "kubediag.org/kubediag/internal/processor/recoverer/subpathremount"
	"kubediag.org/kubediag/internal/processor/recoverer/volumerebind"
	"kubediag.org/kubediag/internal/processor/restart"
)

// Deps is what processors need.
type Deps struct {
	Pods    kubelet.Pods
	Kubelet kubelet.Locator
	// Orphans looks for the directories of pods that are gone. Nil: one of its own, which cannot ask the API server and
	// therefore proves none.
	Orphans *orphan.Inspector
	// Runtime is the container runtime. Nil: the one that the kubelet uses.
	Runtime restart.Runtime
	// Owners tells whose processes are whose. Nil: the container runtime that the kubelet uses.
	Owners device.Runtime
	// Volumes judges volumes. Nil: one of its own, which does not know pods by their UIDs.
	Volumes *volume.Inspector
	// Evictor evicts pods. Nil: no pod is evicted.
	Evictor podevict.Evictor
	// Connections tells since when FUSE connections are there. Nil: it is not known.
	Connections volumehealth.Connections
	// Lister lists the pods of the node. Nil: they are not known, and only a pod that is named is looked at.
	Lister auto.Lister
}

// Jobs is what built-in processors have done in processes that can be lost. Main programs hand it to subprocess.Main.
func Jobs() []subprocess.Job {
	return []subprocess.Job{probe.Job, volume.Job, volume.ArgumentsJob, device.Job, devholder.Job}
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
	if d.Volumes == nil {
		d.Volumes = &volume.Inspector{
			Kubelet: d.Kubelet, Scanner: scanner, Prober: &probe.Prober{}, Runtime: d.Owners, Runner: &subprocess.Runner{},
		}
	}
	runner := &subprocess.Runner{}
	inspector := &device.Inspector{
		Kubelet: d.Kubelet, Finder: &devholder.Finder{Scanner: scanner, Runner: runner}, Runtime: d.Owners, Pods: d.Pods, Runner: runner,
	}
	if d.Orphans == nil {
		d.Orphans = &orphan.Inspector{Kubelet: d.Kubelet, Scanner: scanner, Runtime: runtime}
	}
	p := parts{
		pod: &poddetail.PodCollector{Pods: d.Pods}, table: &mountinfo.MountTableCollector{Kubelet: d.Kubelet},
		staleSubPath: &diagnose.Diagnoser{Pods: d.Pods, Kubelet: d.Kubelet},
		remount:      &remount.Recoverer{Pods: d.Pods, Kubelet: d.Kubelet, Runtime: d.Runtime},
		volumes: &volumehealth.Diagnoser{
			Pods: d.Pods, Inspector: d.Volumes, Teller: &fusedaemon.Teller{Kubelet: d.Kubelet, Runtime: runtime}, Connections: d.Connections,
		},
		rebind:  &volumerebind.RebindRecoverer{Pods: d.Pods, Inspector: d.Volumes, Runtime: d.Runtime},
		evict:   &podevict.EvictRecoverer{Pods: d.Pods, Kubelet: d.Kubelet, Judge: &volumerebind.UnrepairableJudge{Inspector: d.Volumes}, Evictor: d.Evictor},
		held:    &helddevice.Diagnoser{Inspector: inspector},
		release: &release.ReleaseRecoverer{Inspector: inspector},
		orphans: &listorphans.Collector{Inspector: d.Orphans}, remove: &orphanedpod.Recoverer{Inspector: d.Orphans},
	}
	families := p.families()
	return processor.NewRegistry(append(p.steps(),
		processor.Step{Processor: &auto.Collector{OfPod: []processor.Processor{p.pod}, OfNode: []processor.Processor{p.table}}},
		processor.Step{Processor: &auto.Diagnoser{Pods: d.Pods, Lister: d.Lister, Families: families}},
		processor.Step{Recoverer: &auto.Recoverer{Families: families}},
		processor.Step{Processor: &mountnamespace.NamespaceCollector{Scanner: scanner}},
		processor.Step{Processor: &blockdevice.DeviceCollector{Kubelet: d.Kubelet, Scanner: scanner}},
		processor.Step{Recoverer: &idledevice.IdleRecoverer{Inspector: inspector}},
		processor.Step{Processor: &listvolumes.Collector{Pods: d.Pods, Inspector: d.Volumes}},
	)...)
}

// socket is where the runtime of our kubelet listens now.
func (d Deps) socket(ctx context.Context) (string, error) {
	n, err := d.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	return n.RuntimeSocket(ctx)
}
