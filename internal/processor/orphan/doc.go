// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package orphan holds the processors for directories of pods that are gone: one lists them, one empties them. The judge is package
// internal/faults/orphan.
package orphan
