// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package samples holds the manifests of this directory, so that the demo and the tests use those that users apply.
package samples

import _ "embed"

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

// VolumeHealth is the four Operations and the OperationSet that find and mend volumes that have died, or evict their pod.
//
//go:embed volume-health.yaml
var VolumeHealth string

// Diagnosis is one that runs the first of them; its node and pod are to be filled in.
//
//go:embed diagnosis.yaml
var Diagnosis string
