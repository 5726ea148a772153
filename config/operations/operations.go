// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package operations holds the Operations and OperationSets that kubediag ships: the manager installs them and keeps them
// current, and the demo and the tests use the same manifests.
package operations

import "embed"

// Files are all manifests of this directory.
//
//go:embed *.yaml
var Files embed.FS

// Sets lists the names of the OperationSets that ship, in order. Every start of the program needs them, so no YAML is parsed for them.
func Sets() []string {
	return []string{
		"auto", "held-device-op-set", "idle-device-op-set", "mount-impact-op-set", "node-mount-op-set", "orphaned-pod-op-set", "pod-evict-op-set", "subpath-remount-op-set", "volume-health-op-set",
	}
}

// Auto is the three Operations and the OperationSet that look for every fault.
//
//go:embed auto.yaml
var Auto string

// SubPathRemount is the four Operations and the OperationSet that find and heal a stale subPath.
//
//go:embed subpath-remount.yaml
var SubPathRemount string

// HeldDevice is the four Operations and the OperationSet that find and release held devices.
//
//go:embed held-device.yaml
var HeldDevice string

// IdleDevice is the Operation and the OperationSet that unmap idle krbd devices.
//
//go:embed idle-device.yaml
var IdleDevice string

// VolumeHealth is the four Operations and the OperationSet that find and repair dead volumes, or evict their pod.
//
//go:embed volume-health.yaml
var VolumeHealth string
