// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package reap makes sure that processes are gone before what they work on is removed. It is for tests alone.
package reap

import (
	"fmt"
	"time"
)

// All calls kill, which gives the IDs of the processes that it has found and killed, until two calls in a row find none: those
// that were killed may work for a moment yet, and start others. It gives up on any that are still found after limit.
func All(limit time.Duration, kill func() ([]int, error)) error {
	deadline := time.Now().Add(limit)
	for quiet := 0; quiet < 2; time.Sleep(20 * time.Millisecond) {
		left, err := kill()
		if err != nil {
			return err
		}
		quiet++
		if len(left) > 0 {
			quiet = 0
		}
		if time.Now().After(deadline) && len(left) > 0 {
			return fmt.Errorf("kill processes %v: still running", left)
		}
	}
	return nil
}
