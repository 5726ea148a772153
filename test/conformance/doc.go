// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance runs Kubernetes' own end-to-end tests of volumes on a node whose agent may repair every fault. They make pods with
// volumes of all kinds, break some of them on purpose, and take them away: they pass, and nothing is repaired that was not broken. It has
// no code outside its benchmark.
package conformance
