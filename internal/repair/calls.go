// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

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
	// Grace is how long a processor or a family may take to return after its context is done.
	Grace = time.Second
	// MaxAbandoned is how many calls that did not return this process bears. Each holds a goroutine, and maybe
	// more. Namespaces share them, and then pods.
	MaxAbandoned = 32
)

var (
	// ErrAbandoned says that a call is left behind, still at work.
	ErrAbandoned = errors.New("did not stop in time, and was left behind")
	// ErrTimeout is the cause of a context whose time limit is that of an attempt.
	ErrTimeout = errors.New("time limit of the operation has passed")
)

// PanicError is a panic of a processor or a family.
type PanicError struct {
	Value any
	Stack []byte
}

// Error has the value of the panic.
func (e *PanicError) Error() string { return fmt.Sprintf("panicked: %v", e.Value) }

// timeoutError is an error after the time limit of an operation, which is the cause.
type timeoutError struct{ cause, err error }

func (e *timeoutError) Error() string   { return e.cause.Error() + ": " + e.err.Error() }
func (e *timeoutError) Unwrap() []error { return []error{e.cause, e.err} }

// wrapTimeout marks an error that comes after the time limit of an attempt. It then wraps ErrTimeout.
func wrapTimeout(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrTimeout) && !errors.Is(err, ErrTimeout) {
		return &timeoutError{cause, err}
	}
	return err
}

// Calls are the calls of processors and families. Some of them did not return in time, and have not returned since.
type Calls struct {
	calls bounded.Calls
	mu    sync.Mutex
	room  share.Room
}

// NewCalls returns Calls without any.
func NewCalls() *Calls {
	return &Calls{calls: bounded.Calls{Grace: Grace}, room: share.Room{Places: MaxAbandoned}}
}

// Abandoned is how many calls are still at work although their time was up.
func (c *Calls) Abandoned() int { return c.calls.Abandoned() }

// Call calls fn in a goroutine of its own and returns its results. A panic becomes an error. If fn does not return
// within the grace after ctx is done, it is left behind; its result is dropped when it comes. It is on the account of the pod of the
// request, or its namespace. Without Calls, fn runs in the goroutine of the caller, which may be in a namespace.
func Call[T any](ctx context.Context, c *Calls, r processor.Request, fn func(context.Context) (T, error)) (T, error) {
	if c == nil {
		return fn(ctx)
	}
	owner := share.Owner{Namespace: cmp.Or(r.Pod.Namespace, r.Diagnosis.Namespace), Pod: r.Pod.Name}
	c.mu.Lock()
	may, n := c.room.May(owner), c.room.Taken()
	c.mu.Unlock()
	if !may {
		var none T
		return none, processor.Stalled(fmt.Errorf("starting processor: %d others did not stop in time, as many of them in namespace %q as may", n, owner.Namespace))
	}
	returned, abandoned := false, false // both under the lock
	value, err := bounded.Do(ctx, &c.calls, bounded.Call{}, func() (value T, err error) {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if returned = true; abandoned {
				c.room.Free(owner)
			}
		}()
		defer func() {
			if p := recover(); p != nil {
				err = &PanicError{Value: p, Stack: debug.Stack()}
			}
		}()
		return fn(ctx)
	})
	switch {
	case errors.Is(err, bounded.ErrLeft):
		c.mu.Lock()
		if abandoned = !returned; abandoned {
			c.room.Add(owner)
		}
		c.mu.Unlock()
		err = ErrAbandoned
	case errors.Is(err, bounded.ErrEnded):
		err = &PanicError{Value: err}
	}
	return value, wrapTimeout(ctx, err)
}
