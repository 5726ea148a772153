// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestWithinLeavesBehindWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, asked := make(chan struct{}), 0
		ask := func() (int, error) { asked++; <-answers; return asked, nil }
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := within(ctx, "hung", ask)
			cancel()
			if !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want no answer", err)
			}
		}
		synctest.Wait()
		if asked != 1 {
			t.Errorf("asked %d times while the first hangs", asked)
		}
		close(answers)
		if n, err := within(t.Context(), "hung", ask); err != nil || n != 2 {
			t.Errorf("%d, %v after it answered", n, err)
		}
		synctest.Wait()
		if _, kept := turns.of["hung"]; kept {
			t.Error("a turn is kept for good")
		}
	})
}

func TestWithinLetsOneAskAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, done := 0, make(chan error)
		for range 10 {
			go func() {
				_, err := within(t.Context(), "one", func() (int, error) {
					if running++; running > 1 {
						t.Error("two at once")
					}
					time.Sleep(time.Millisecond)
					running--
					return 0, nil
				})
				done <- err
			}()
		}
		for range 10 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
