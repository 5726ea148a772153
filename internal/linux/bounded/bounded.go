// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package bounded makes calls that may never return, and waits for each only until
// its context ends. Nothing makes the kernel give up a call that waits for a file
// system or a device. So the call is left behind: it keeps its goroutine and its
// thread, it is counted, and its result is dropped. Calls that hang for good, and that
// SIGKILL does not end, are for package subprocess.
//
// It does not depend on the calls, and imports the standard library alone.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The reasons for which a call has no result. Each is an ErrNoAnswer.
var (
	ErrNoAnswer = errors.New("no answer in time")
	// ErrLeft: the call was made, and was left behind. The cause of the context comes with it.
	ErrLeft = fmt.Errorf("%w: the call was left behind", ErrNoAnswer)
	// ErrWaiting: an earlier call with the same key has not returned. This one was not made.
	ErrWaiting = fmt.Errorf("%w: an earlier call for the same waits", ErrNoAnswer)
	// ErrTooMany: there are as many calls as there may be. This one was not made.
	ErrTooMany = fmt.Errorf("%w: too many other calls wait", ErrNoAnswer)
)

// ErrEnded is the result of a call that ends its goroutine instead of returning.
var ErrEnded = errors.New("the goroutine was ended")

// Calls bounds the calls of one kind. The zero value bounds only those with a key.
// The fields are set before the first use; then several goroutines may use it.
type Calls struct {
	// Total and PerOwner are how many calls there may be at once, in all and for one
	// owner. Those that were left behind count. 0: any number.
	Total, PerOwner int
	// Grace is how long Do waits for a call after its context has ended.
	Grace time.Duration
	// Queue lets a call wait for its turn even if the one before it was left behind.
	// Otherwise that is ErrWaiting at once.
	Queue bool

	mu             sync.Mutex
	lastByKey      map[string]*runningCall
	countByOwner   map[string]int
	runningCount   int
	abandonedCount int
}

// Call holds the names by which a call is counted.
type Call struct {
	// Key names the thing that the call may wait for. At most one call with a key runs at a time, and others wait for
	// their turn. Empty: any number runs.
	Key string
	// Owner is who is held to account for a call that does not return.
	Owner string
}

// runningCall is a call that has not returned.
type runningCall struct {
	Call
	returned  chan struct{}
	abandoned bool
}

// Abandoned is how many calls were left behind and have not returned.
func (c *Calls) Abandoned() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.abandonedCount
}

// Do runs fn in a goroutine of its own and returns its results, or an ErrNoAnswer when ctx and the grace after it have
// ended. fn may still run then.
func Do[T any](ctx context.Context, c *Calls, call Call, fn func() (T, error)) (value T, err error) {
	u := &runningCall{Call: call, returned: make(chan struct{})}
	for { // it waits for its turn
		before, err := c.reserve(u)
		if err != nil {
			return value, err
		}
		if before == nil {
			break
		}
		select {
		case <-before.returned:
		case <-ctx.Done():
			return value, fmt.Errorf("%w: %w", ErrWaiting, context.Cause(ctx))
		}
	}
	var result T
	failure := ErrEnded
	go func() {
		defer c.releaseCall(u)
		result, failure = fn()
	}()
	if c.waitReturn(ctx, u) {
		return result, failure
	}
	return value, fmt.Errorf("%w: %w", ErrLeft, context.Cause(ctx))
}

// reserve takes room for a call, unless another with its key is before it.
func (c *Calls) reserve(call *runningCall) (before *runningCall, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.lastByKey[call.Key]; other != nil {
		if other.abandoned && !c.Queue {
			return nil, ErrWaiting
		}
		return other, nil
	}
	if c.Total > 0 && c.runningCount >= c.Total || c.PerOwner > 0 && c.countByOwner[call.Owner] >= c.PerOwner {
		return nil, ErrTooMany
	}
	if c.lastByKey == nil {
		c.lastByKey, c.countByOwner = map[string]*runningCall{}, map[string]int{}
	}
	if call.Key != "" {
		c.lastByKey[call.Key] = call
	}
	c.runningCount++
	c.countByOwner[call.Owner]++
	return nil, nil
}

// releaseCall gives the room of a call back before the next one goes on.
func (c *Calls) releaseCall(call *runningCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call.Key != "" {
		delete(c.lastByKey, call.Key)
	}
	if call.abandoned {
		c.abandonedCount--
	}
	c.runningCount--
	if c.countByOwner[call.Owner]--; c.countByOwner[call.Owner] == 0 {
		delete(c.countByOwner, call.Owner)
	}
	close(call.returned)
}

// waitReturn reports whether a call returns in time, and leaves it behind otherwise.
func (c *Calls) waitReturn(ctx context.Context, call *runningCall) bool {
	select {
	case <-call.returned:
		return true
	case <-ctx.Done():
	}
	grace := time.NewTimer(c.Grace)
	defer grace.Stop()
	select {
	case <-call.returned:
		return true
	case <-grace.C:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-call.returned:
		return true
	default:
	}
	call.abandoned = true
	c.abandonedCount++
	return false
}
