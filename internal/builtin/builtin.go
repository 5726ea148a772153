// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package builtin names the processors that kubediag brings with it and their parameters, and nothing more. So a program
// that only has to know a name does not link the code that looks at mounts: the manager, when it checks an Operation.
package builtin

import "slices"

// The built-in processors. Each is the last part of the path /processor/<name>.
const (
	autoCollector           = "autoCollector"
	AutoDiagnoser           = "autoDiagnoser"
	AutoRecover             = "autoRecover"
	blockDeviceCollector    = "blockDeviceCollector"
	HeldDeviceDiagnoser     = "heldDeviceDiagnoser"
	HeldDeviceRecover       = "heldDeviceRecover"
	IdleDeviceRecover       = "idleDeviceRecover"
	mountImpactDiagnoser    = "mountImpactDiagnoser"
	mountInfoCollector      = "mountInfoCollector"
	mountNamespaceCollector = "mountNamespaceCollector"
	nodeMountDiagnoser      = "nodeMountDiagnoser"
	NodeMountRecover        = "nodeMountRecover"
	orphanedPodCollector    = "orphanedPodCollector"
	OrphanedPodRecover      = "orphanedPodRecover"
	podDetailCollector      = "podDetailCollector"
	PodEvictRecover         = "podEvictRecover"
	subpathRemountDiagnoser = "subpathRemountDiagnoser"
	SubpathRemountRecover   = "subpathRemountRecover"
	VolumeHealthCollector   = "volumeHealthCollector"
	VolumeHealthDiagnoser   = "volumeHealthDiagnoser"
	VolumeRebindRecover     = "volumeRebindRecover"
)

// names is in order.
var names = []string{
	autoCollector, AutoDiagnoser, AutoRecover, blockDeviceCollector, HeldDeviceDiagnoser, HeldDeviceRecover, IdleDeviceRecover,
	mountImpactDiagnoser, mountInfoCollector, mountNamespaceCollector, nodeMountDiagnoser, NodeMountRecover, orphanedPodCollector, OrphanedPodRecover, podDetailCollector, PodEvictRecover, subpathRemountDiagnoser, SubpathRemountRecover,
	VolumeHealthCollector, VolumeHealthDiagnoser, VolumeRebindRecover,
}

// Names lists all built-in processors in order. The caller owns the slice.
func Names() []string { return slices.Clone(names) }

// Known reports whether name is that of a built-in processor.
func Known(name string) bool { return slices.Contains(names, name) }

// Parameters of one family of faults, in order.
var (
	volumeParameters = []string{"param.diagnoser.kubernetes.volume_health.volume"}
	deviceParameters = []string{
		"param.diagnoser.system.held_device.device", "param.diagnoser.system.held_device.persistent_volume",
		"param.diagnoser.system.held_device.message",
	}
	orphanRepair = []string{"param.recover.kubernetes.orphaned_pods.uid", "param.recover.kubernetes.orphaned_pods.limit"}
	mountRepair  = []string{"param.recover.kubernetes.node_mount.path"}
	eviction     = []string{
		"param.recover.kubernetes.pod_evict.allowed", "param.recover.kubernetes.pod_evict.daemon_set",
		"param.recover.kubernetes.pod_evict.wait_seconds",
	}
	subpathStart = []string{
		"param.recover.kubernetes.subpath_remount.bring_forward", "param.recover.kubernetes.subpath_remount.wait_seconds",
	}
	volumeRepair = slices.Concat(volumeParameters, []string{
		"param.recover.kubernetes.volume_rebind.abort", "param.recover.kubernetes.volume_rebind.bring_forward",
		"param.recover.kubernetes.volume_rebind.wait_seconds",
	})
	deviceRepair = slices.Concat(deviceParameters, []string{"param.recover.system.held_device.detach"})
)

// parameters lists, by the name of a processor, the keys of the parameters that it reads.
var parameters = map[string][]string{
	AutoDiagnoser:         sorted(volumeParameters, deviceParameters),
	AutoRecover:           sorted(volumeRepair, deviceRepair, orphanRepair, mountRepair, eviction, subpathStart),
	HeldDeviceDiagnoser:   deviceParameters,
	HeldDeviceRecover:     deviceRepair,
	IdleDeviceRecover:     {"param.recover.system.idle_device.minimum_idle_seconds", "param.recover.system.idle_device.limit"},
	NodeMountRecover:      mountRepair,
	OrphanedPodRecover:    orphanRepair,
	PodEvictRecover:       eviction,
	SubpathRemountRecover: subpathStart,
	VolumeHealthCollector: volumeParameters,
	VolumeHealthDiagnoser: volumeParameters,
	VolumeRebindRecover:   volumeRepair,
}

func sorted(lists ...[]string) []string { return slices.Sorted(slices.Values(slices.Concat(lists...))) }

// Parameters lists the keys of the parameters that a built-in processor reads. The caller owns the slice.
func Parameters(name string) []string { return slices.Clone(parameters[name]) }
