// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"context"
	"time"
)

// Poll calls look at once, and again after each interval, until it is done or fails. done is false if the limit is over
// first.
func Poll(ctx context.Context, interval, limit time.Duration, look func() (done bool, err error)) (done bool, err error) {
	tick, over := time.NewTicker(interval), time.NewTimer(limit)
	defer tick.Stop()
	defer over.Stop()
	for {
		if done, err := look(); done || err != nil {
			return done, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-over.C:
			return false, nil
		case <-tick.C:
		}
	}
}
