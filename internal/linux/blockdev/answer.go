// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"context"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
)

// answerTimeout is how long a device, or the way to one, may take to answer.
const answerTimeout = 3 * time.Second

var (
	// deviceCalls are the calls that wait for a device. One is made at a time for each, so
	// that two that claim it are never taken for others.
	deviceCalls = bounded.Calls{Queue: true}
	// pathCalls are the calls that wait for the way to a device. Any user may name
	// paths that do not answer; devices are only so many.
	pathCalls = bounded.Calls{Queue: true, Total: 32}
)

// callWithin makes a call and waits no longer than answerTimeout for it.
func callWithin[T any](c *bounded.Calls, key string, ask func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return bounded.Do(ctx, c, bounded.Call{Key: key}, ask)
}
