// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package inventory collects facts about a node: its mount table, mount namespaces and block devices, and the pod of a Diagnosis.
// It makes no judgement and no change.
package inventory
