// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/share"
)

const (
	// grace is how long a processor may take to return after its context is done.
	grace = time.Second
	// maxAbandoned is how many processors that did not return this process bears. Each holds a goroutine, and maybe
	// more. Namespaces share them, and then pods.
	maxAbandoned = 32
)

// errAbandoned says that a processor is left behind, still at work.
var errAbandoned = errors.New("did not stop in time, and was left behind")

// panicError is a panic of a processor.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panicked: %v", e.value) }

// timeoutError is an error after the time limit of an operation, which is the cause.
type timeoutError struct{ cause, err error }

func (e *timeoutError) Error() string { return e.cause.Error() + ": " + e.err.Error() }
func (e *timeoutError) Unwrap() error { return e.err }

// timeoutCause is the cause of a context whose time is limited by the operation. It names the limit as the user knows
// it.
func timeoutCause(op operation) error {
	return fmt.Errorf("%w (timeoutSeconds: %g)", errTimeout, op.Timeout.Seconds())
}

// wrapTimeout marks an error that comes after the time limit of the operation.
func wrapTimeout(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errTimeout) {
		return &timeoutError{cause, err}
	}
	return err
}

// abandonedCalls are the processors that did not return in time, and have not returned since.
type abandonedCalls struct {
	mu   sync.Mutex
	room share.Room
}

// processorCall is a call of a processor.
type processorCall struct {
	owner               share.Owner
	returned, abandoned bool
}

// may reports whether a processor may be called for an owner, and how many are left behind.
func (a *abandonedCalls) may(o share.Owner) (bool, int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.room.May(o), a.room.Taken()
}

// leave counts a call that is left behind, unless it has returned meanwhile.
func (a *abandonedCalls) leave(c *processorCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.abandoned = !c.returned; c.abandoned {
		a.room.Add(c.owner)
	}
}

// free gives the place of a call back that has returned.
func (a *abandonedCalls) free(c *processorCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.returned = true; c.abandoned {
		a.room.Free(c.owner)
	}
}

// ownerOf is on whose account a call is: the pod of the Diagnosis, or its namespace.
func ownerOf(r processor.Request) share.Owner {
	return share.Owner{Namespace: cmp.Or(r.Pod.Namespace, r.Diagnosis.Namespace), Pod: r.Pod.Name}
}

// guard calls fn in a goroutine of its own and returns what it returns. A panic becomes an error. If fn does not return
// within the grace after ctx is done, it is left behind; its result is dropped when it comes.
func guard[T any](ctx context.Context, r *Runner, request processor.Request, fn func(context.Context) (T, error)) (T, error) {
	var none T
	call := &processorCall{owner: ownerOf(request)}
	if ok, n := r.abandoned.may(call.owner); !ok {
		return none, processor.Stalled(fmt.Errorf("starting processor: %d others did not stop in time, as many of them in namespace %q as may", n, call.owner.Namespace))
	}
	value, err := bounded.Do(ctx, &r.calls, bounded.Call{}, func() (value T, err error) {
		defer r.abandoned.free(call)
		defer func() {
			if p := recover(); p != nil {
				err = &panicError{value: p, stack: debug.Stack()}
			}
		}()
		return fn(ctx)
	})
	switch {
	case errors.Is(err, bounded.ErrLeft):
		r.abandoned.leave(call)
		err = errAbandoned
	case errors.Is(err, bounded.ErrEnded):
		err = &panicError{value: err}
	}
	return value, wrapTimeout(ctx, err)
}
