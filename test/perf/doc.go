// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package perf holds benchmarks of kubediag as a whole, as ratios against another measurement in the same run. It has no
// code outside its tests.
package perf
