// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package podinfo reads from a pod's spec and status what all families of faults need: its containers and whether they will
// start again, its volumes, and the subPaths that it mounts. It judges nothing and touches no file.
package podinfo
