// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// answerTime is how long a device, or the way to one, may take to answer.
const answerTime = 3 * time.Second

// turns has one entry for each thing that is being asked, or waited for.
var turns = struct {
	sync.Mutex
	of map[string]*turn
}{of: map[string]*turn{}}

// turn lets one ask at a time.
type turn struct {
	taken chan struct{} // one place
	users int           // who asks or waits
}

// within runs ask and waits for it until ctx ends; then it gives ErrNoAnswer
// and leaves ask behind, as nothing can make the kernel give up. At most one ask
// of a key runs in this process, whatever hangs; so two that claim a device
// never take each other for somebody else.
func within[T any](ctx context.Context, key string, ask func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	t := join(key)
	select {
	case t.taken <- struct{}{}:
	case <-ctx.Done():
		t.leave(key)
		return *new(T), noAnswer(ctx)
	}
	done := make(chan result, 1)
	go func() {
		value, err := ask()
		<-t.taken
		t.leave(key)
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return *new(T), noAnswer(ctx)
	}
}

// paths has a place for each path that is being asked for. Anybody may name paths
// that do not answer, and each leaves a thread behind; devices are only so many.
var paths = make(chan struct{}, 32)

// along is for a way to a device, whatever its key: beyond the places there are
// it gives ErrNoAnswer at once.
func along[T any](ask func() (T, error)) (T, error) {
	select {
	case paths <- struct{}{}:
		defer func() { <-paths }()
		return ask()
	default:
		return *new(T), fmt.Errorf("%w: nor do %d other paths", ErrNoAnswer, cap(paths))
	}
}

func noAnswer(ctx context.Context) error {
	return fmt.Errorf("%w: %w", ErrNoAnswer, context.Cause(ctx))
}

func join(key string) *turn {
	turns.Lock()
	defer turns.Unlock()
	t := turns.of[key]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		turns.of[key] = t
	}
	t.users++
	return t
}

func (t *turn) leave(key string) {
	turns.Lock()
	defer turns.Unlock()
	if t.users--; t.users == 0 {
		delete(turns.of, key)
	}
}
