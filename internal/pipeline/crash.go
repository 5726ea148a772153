// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build crash

package pipeline

import (
	"os"
	"strconv"
	"sync/atomic"
)

// With the build tag crash, which no release has, a process kills itself at the boundary of a step: the moment before or
// after a record is written, whose number is in KUBEDIAG_CRASH_AT, counted from 1. 0 is never.
func init() {
	at, err := strconv.ParseInt(os.Getenv("KUBEDIAG_CRASH_AT"), 10, 64)
	if err != nil {
		return
	}
	var boundaries atomic.Int64
	crashHook = func(bool, record) {
		if boundaries.Add(1) != at {
			return
		}
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // the signal is on its way
	}
}
