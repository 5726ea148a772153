// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package subpath holds the processors for stale subPath binds (kubernetes#68211): one diagnoses them, one repairs them. The judge is
// package internal/faults/subpath.
package subpath
