// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package podinfo reads the facts that all families of faults need from a pod's spec and status: its containers and whether they will
// start again, its volumes, and the subPaths that it mounts. It makes no judgement and touches no file.
package podinfo
