// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"context"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
)

// answerTime is how long a device, or the way to one, may take to answer.
const answerTime = 3 * time.Second

var (
	// devices are the calls that wait for a device. One is made at a time for each, so
	// that two that claim it are never taken for others.
	devices = bounded.Calls{Queue: true}
	// paths are the calls that wait for the way to a device. Any user may name
	// paths that do not answer; devices are only so many.
	paths = bounded.Calls{Queue: true, Total: 32}
)

// within makes a call and waits no longer than answerTime for it.
func within[T any](c *bounded.Calls, key string, ask func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	return bounded.Do(ctx, c, bounded.Call{Key: key}, ask)
}
