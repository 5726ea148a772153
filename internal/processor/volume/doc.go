// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package volume holds the processors for dead volumes: one lists volumes, one diagnoses them, one replaces their mounts, and one
// evicts a pod whose volume cannot be repaired on its node. The judge is package internal/faults/volume.
package volume
