// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/time/rate"
)

// turns has the API server asked about unknown tokens at a pace. Addresses share it: the turn is that of the address of a sender, then
// of the one that was refused least, and among the same of the request that has waited longest. Each request that waits has a
// connection, which bounds them.
//
// They are no share.Turns. There each owner waits for one turn of each other one, and strangers have as many addresses as there are pods.
type turns struct {
	limiter *rate.Limiter

	mu      sync.Mutex
	waiting []*turn // in the order in which they came
	giving  bool
}

// turn is closed when it has come.
type turn struct {
	of   *conn
	came chan struct{}
}

// awaitTurn returns when it is the turn of a connection.
func (t *turns) awaitTurn(ctx context.Context, of *conn) error {
	mine := &turn{of: of, came: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, mine)
	if !t.giving {
		t.giving = true
		go func() {
			for t.limiter.Wait(context.Background()) == nil { // a limiter without a rate gives no more turns
				t.mu.Lock()
				if len(t.waiting) > 0 {
					close(t.takeNext().came)
				}
				t.giving = len(t.waiting) > 0 // else the next request begins to give turns again
				more := t.giving
				t.mu.Unlock()
				if !more {
					return
				}
			}
		}()
	}
	t.mu.Unlock()
	select {
	case <-mine.came:
		return nil
	case <-ctx.Done():
		t.mu.Lock()
		defer t.mu.Unlock()
		t.waiting = slices.DeleteFunc(t.waiting, func(other *turn) bool { return other == mine })
		return fmt.Errorf("waiting for the turn: %w", ctx.Err())
	}
}

// takeNext takes the request whose turn it is from those that wait.
func (t *turns) takeNext() *turn {
	first := slices.MinFunc(t.waiting, func(a, b *turn) int { return cmp.Compare(a.of.rank(), b.of.rank()) })
	t.waiting = slices.DeleteFunc(t.waiting, func(other *turn) bool { return other == first })
	return first
}
