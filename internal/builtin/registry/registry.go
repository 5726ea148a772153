// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry makes the registry of the built-in processors. It holds no logic of its own: it hands each processor its
// parts of the node. It is apart from package builtin, since the manager needs the names and must not link the processors.
package registry

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	devicefault "kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/fusedaemon"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/links"
	mountfaults "kubediag.org/kubediag/internal/faults/nodemount"
	orphanfault "kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/searches"
	subpathfault "kubediag.org/kubediag/internal/faults/subpath"
	volumefault "kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/auto"
	"kubediag.org/kubediag/internal/processor/device"
	"kubediag.org/kubediag/internal/processor/inventory"
	"kubediag.org/kubediag/internal/processor/nodemount"
	"kubediag.org/kubediag/internal/processor/orphan"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/processor/subpath"
	"kubediag.org/kubediag/internal/processor/volume"
	"kubediag.org/kubediag/internal/repair"
)

// Deps are the dependencies of processors.
type Deps struct {
	Pods    kubelet.Pods
	Kubelet kubelet.Locator
	// Orphans looks for the directories of pods that are gone. Nil: one of its own, which cannot ask the API server and
	// therefore proves none.
	Orphans *orphanfault.Inspector
	// Runtime is the container runtime. Nil: that of the kubelet.
	Runtime restart.Runtime
	// Owners finds the container of a process. Nil: the container runtime that the kubelet uses.
	Owners devicefault.Runtime
	// Volumes judges volumes. Nil: one of its own, which does not know pods by their UIDs.
	Volumes *volumefault.Inspector
	// Devices judges devices. Nil: one of its own.
	Devices *devicefault.Inspector
	// Evictor evicts pods. Nil: no pod is evicted.
	Evictor repair.Evictor
	// Connections returns the times at which FUSE connections were made. Nil: they are not known.
	Connections volume.Connections
	// IdleFile keeps observations of devices over a restart. Empty: nothing does.
	IdleFile string
	// Lister lists the pods of the node. Nil: they are not known, and only a named pod is diagnosed.
	Lister auto.Lister
	// Specs lists the pods whose whole specs are known: they alone prove that no pod has a mount. Nil: all of Lister's are.
	Specs func() []*corev1.Pod
	// ClaimPaths reads where the claims of pods lie; nil: that is not known.
	ClaimPaths subpathfault.ClaimPaths
	// Attachments reads which volumes are attached to the node; nil: that is not known, and no staging path is unmounted.
	Attachments mountfaults.Attachments
}

// Jobs are the parts of built-in processors that run in processes that can be lost. Main programs hand it to subprocess.Main.
func Jobs() []subprocess.Job {
	return []subprocess.Job{probe.Job, volumefault.Job, volumefault.CommandLinesJob, devicefault.Job, devholder.Job, mountfaults.Job}
}

// New makes the registry of all built-in processors.
func New(d Deps) (*pipeline.Registry, error) {
	runtime := &cri.Client{Socket: d.socket}
	if d.Runtime == nil {
		d.Runtime = runtime
	}
	if d.Owners == nil {
		d.Owners = runtime
	}
	if d.Volumes == nil {
		d.Volumes = &volumefault.Inspector{
			Kubelet: d.Kubelet, Prober: &probe.Prober{}, Runtime: d.Owners, Runner: &subprocess.Runner{},
		}
	}
	exits, runner := &fusedaemon.Analyzer{Kubelet: d.Kubelet, Runtime: runtime}, &subprocess.Runner{}
	inspector := d.Devices
	if inspector == nil {
		inspector = &devicefault.Inspector{
			Kubelet: d.Kubelet, Finder: &devholder.Finder{Runner: runner}, Runtime: d.Owners, Pods: d.Pods, Runner: runner,
		}
	}
	if d.Orphans == nil {
		d.Orphans = &orphanfault.Inspector{Kubelet: d.Kubelet, Runtime: runtime}
	}
	surplus, mounts := &mountfaults.Inspector{Kubelet: d.Kubelet, Runner: runner, Attachments: d.Attachments}, searches.Mounts{Links: &links.Inspector{Kubelet: d.Kubelet, Runtime: runtime}}
	if d.Specs == nil && d.Lister != nil {
		d.Specs = d.Lister.PodsHere
	}
	surplus.Pods, mounts.Links.Pods = d.Specs, d.Specs
	binds := subpathfault.Sources{Prober: d.Volumes.Prober, Runtime: runtime, ClaimPaths: d.ClaimPaths}
	p := parts{
		pod: &inventory.PodCollector{Pods: d.Pods}, table: &inventory.MountTableCollector{Kubelet: d.Kubelet, Pods: d.Pods},
		staleSubPath: &subpath.Diagnoser{Pods: d.Pods, Kubelet: d.Kubelet, Sources: binds},
		remount:      &subpath.Recoverer{Pods: d.Pods, Kubelet: d.Kubelet, Runtime: d.Runtime, Sources: binds},
		volumes:      &volume.Diagnoser{Pods: d.Pods, Inspector: d.Volumes, Exits: exits, Connections: d.Connections},
		rebind:       &volume.RebindRecoverer{Pods: d.Pods, Inspector: d.Volumes, Runtime: d.Runtime},
		evict:        &volume.EvictRecoverer{Pods: d.Pods, Kubelet: d.Kubelet, Judge: &volume.UnrepairableJudge{Inspector: d.Volumes}, Allowed: d.Evictor != nil},
		held:         &device.Diagnoser{Inspector: inspector},
		release:      &device.ReleaseRecoverer{Inspector: inspector},
		orphans:      &orphan.Collector{Inspector: d.Orphans}, remove: &orphan.Recoverer{Inspector: d.Orphans},
		surplus: &nodemount.Diagnoser{Inspector: surplus}, mounts: &nodemount.Diagnoser{Inspector: surplus, Mounts: mounts}, unstack: &nodemount.Recoverer{Inspector: surplus},
	}
	families := p.families(fault.Known())
	all, err := pipeline.NewRegistry(append(p.steps(),
		pipeline.Step{Processor: &auto.Collector{OfPod: []processor.Processor{p.pod}, OfNode: []processor.Processor{p.table}}},
		pipeline.Step{Processor: &auto.Diagnoser{
			Pods: d.Pods, Lister: d.Lister, Families: families, Links: mounts,
			Leaving: &leaving.Inspector{Kubelet: d.Kubelet, Runtime: runtime, Users: searches.UsersBy(inspector)},
		}},
		pipeline.Step{Planner: &auto.Recoverer{Families: families}},
		pipeline.Step{Processor: &inventory.NamespaceCollector{Pods: d.Pods}},
		pipeline.Step{Processor: &inventory.DeviceCollector{Kubelet: d.Kubelet, Pods: d.Pods}},
		pipeline.Step{Family: &device.IdleRecoverer{Inspector: inspector, File: d.IdleFile}},
		pipeline.Step{Processor: &volume.Collector{Pods: d.Pods, Inspector: d.Volumes}},
		pipeline.Step{Processor: &volume.ImpactDiagnoser{Inspector: d.Volumes, Pods: d.Volumes.Pods, Exits: exits, Owners: d.Owners}},
	)...)
	if err != nil {
		return nil, err
	}
	all.Evictor, all.Records = d.Evictor, restart.Restarter{Pods: d.Pods, Runtime: d.Runtime}
	return all, nil
}

// socket is where the runtime of our kubelet listens now.
func (d Deps) socket(ctx context.Context) (string, error) {
	n, err := d.Kubelet.Node(ctx)
	if err != nil {
		return "", err
	}
	return n.RuntimeSocket(ctx)
}
