// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
)

// The first collection of memory comes when the program has so many bytes, and from then on it is collected as it grows by a percentage.
const (
	collectionBegin = 48 << 20
	growthPercent   = 400
)

// DelayCollection is for a program that ends soon: the collection of memory that is hardly garbage yet takes a tenth of its time, and most runs end
// before the first one now. It does nothing if the user's environment says when memory is collected.
func DelayCollection() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(collectionBegin)
	runtime.AddCleanup(new([64]byte), func(struct{}) { // called by the first collection
		debug.SetGCPercent(growthPercent)
		debug.SetMemoryLimit(math.MaxInt64)
	}, struct{}{})
}
