// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package builtin names the processors that kubediag brings with it, and nothing more, so that those who only have to
// know a name (the manager, when it checks an Operation) do not link the code that looks at mounts.
package builtin

import "slices"

// The built-in processors. Each is the last part of the path /processor/<name>.
const (
	AutoCollector           = "autoCollector"
	AutoDiagnoser           = "autoDiagnoser"
	AutoRecover             = "autoRecover"
	BlockDeviceCollector    = "blockDeviceCollector"
	HeldDeviceDiagnoser     = "heldDeviceDiagnoser"
	HeldDeviceRecover       = "heldDeviceRecover"
	IdleDeviceRecover       = "idleDeviceRecover"
	MountInfoCollector      = "mountInfoCollector"
	MountNamespaceCollector = "mountNamespaceCollector"
	OrphanedPodCollector    = "orphanedPodCollector"
	OrphanedPodRecover      = "orphanedPodRecover"
	PodDetailCollector      = "podDetailCollector"
	PodEvictRecover         = "podEvictRecover"
	SubpathRemountDiagnoser = "subpathRemountDiagnoser"
	SubpathRemountRecover   = "subpathRemountRecover"
	VolumeHealthCollector   = "volumeHealthCollector"
	VolumeHealthDiagnoser   = "volumeHealthDiagnoser"
	VolumeRebindRecover     = "volumeRebindRecover"
)

// names is in order.
var names = []string{
	AutoCollector, AutoDiagnoser, AutoRecover, BlockDeviceCollector, HeldDeviceDiagnoser, HeldDeviceRecover, IdleDeviceRecover,
	MountInfoCollector, MountNamespaceCollector, OrphanedPodCollector, OrphanedPodRecover, PodDetailCollector, PodEvictRecover, SubpathRemountDiagnoser, SubpathRemountRecover,
	VolumeHealthCollector, VolumeHealthDiagnoser, VolumeRebindRecover,
}

// Names lists all built-in processors in order. The caller owns the slice.
func Names() []string { return slices.Clone(names) }

// Known tells whether name is that of a built-in processor.
func Known(name string) bool { return slices.Contains(names, name) }
