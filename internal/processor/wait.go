// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"context"
	"time"
)

// ReserveTime is left of the operation's time to say how it went.
const ReserveTime = 2 * time.Second

// Wait is for the part of others in a repair: the kubelet starts containers and removes directories, and pods go. The driver of the
// repair waits, and its family does not.
type Wait struct {
	// Limit is for how long, as far as the operation has time. Interval is how often to look.
	Limit, Interval time.Duration
	// Look reports whether it is done.
	Look func(ctx context.Context) (done bool, err error)
	// End is the result after that. If it was not done within the limit, waited is the limit.
	End func(ctx context.Context, done bool, waited time.Duration) (Result, error)
}

// Await waits, and returns the result.
func (w *Wait) Await(ctx context.Context) (Result, error) {
	begin, limit := time.Now(), w.Limit
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(0, min(limit, time.Until(deadline)-ReserveTime))
	}
	done, err := Poll(ctx, w.Interval, limit, func() (bool, error) { return w.Look(ctx) })
	switch {
	case err != nil:
		return Result{}, err
	case done:
		limit = time.Since(begin)
	}
	return w.End(ctx, done, limit)
}

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
