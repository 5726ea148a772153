// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package device holds the processors for block devices: one diagnoses devices that a mount namespace still holds, one releases
// them, and one unmaps idle krbd devices. The judge is package internal/faults/device.
package device
