// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestWaitFitsIntoTheOperation: a wait leaves time to say how it went, and looks at least once.
func TestWaitFitsIntoTheOperation(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		time.Hour: 45 * time.Second, time.Minute: 45 * time.Second, 10 * time.Second: 8 * time.Second, time.Second: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			defer cancel()
			looks := 0
			w := Wait{
				Limit: 45 * time.Second, Interval: time.Minute,
				Look: func(context.Context) (bool, error) { looks++; return false, nil },
				End: func(_ context.Context, done bool, waited time.Duration) (Result, error) {
					if done || waited != want || looks != 1 {
						t.Errorf("with %v left: done %v, %v after %d looks, want %v", left, done, waited, looks, want)
					}
					return Result{}, nil
				},
			}
			if _, err := w.Await(ctx); err != nil {
				t.Errorf("with %v left: %v", left, err)
			}
		})
	}
}

// TestWaitEndsEarly: it ends when it is done, and when a look fails or the operation ends.
func TestWaitEndsEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failed, looks := errors.New("no answer"), 0
		w := Wait{
			Limit: time.Minute, Interval: time.Second,
			Look: func(context.Context) (bool, error) { looks++; return looks == 3, nil },
			End: func(_ context.Context, done bool, waited time.Duration) (Result, error) {
				if !done || waited != 2*time.Second {
					t.Errorf("done %v after %v", done, waited)
				}
				return Result{Message: "ended"}, nil
			},
		}
		if r, err := w.Await(t.Context()); err != nil || r.Message != "ended" {
			t.Errorf("done at the third look: %+v, %v", r, err)
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if _, err := w.Await(stopped); !errors.Is(err, context.Canceled) {
			t.Errorf("of an operation that ends: %v", err)
		}
		w.Look = func(context.Context) (bool, error) { return false, failed }
		if _, err := w.Await(t.Context()); !errors.Is(err, failed) {
			t.Errorf("a look that fails: %v", err)
		}
	})
}
