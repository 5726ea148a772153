// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hangingCall returns a call that waits for release, and counts how often it was made.
func hangingCall(made *atomic.Int64, release <-chan struct{}) func() (int, error) {
	return func() (int, error) {
		n := int(made.Add(1))
		<-release
		return n, nil
	}
}

// callWithin calls fn with a limit of one second.
func callWithin(t *testing.T, c *Calls, call Call, fn func() (int, error)) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return Do(ctx, c, call, fn)
}

func TestResultOfTheCall(t *testing.T) {
	t.Parallel()
	var c Calls
	own := errors.New("own")
	if n, err := Do(t.Context(), &c, Call{Key: "k"}, func() (int, error) { return 7, own }); n != 7 || !errors.Is(err, own) {
		t.Errorf("%d, %v, want 7 and the call's own error", n, err)
	}
	if _, err := Do(t.Context(), &c, Call{}, func() (int, error) { runtime.Goexit(); return 7, nil }); !errors.Is(err, ErrEnded) {
		t.Errorf("%v, want that the goroutine has ended", err)
	}
	if c.runningCount != 0 || len(c.lastByKey) != 0 || len(c.countByOwner) != 0 {
		t.Errorf("%+v is kept", &c)
	}
}

// TestAbandonedCall has a call hang: no other with its key is made until it returns, and then nothing is kept.
func TestAbandonedCall(t *testing.T) {
	t.Parallel()
	for _, queue := range []bool{false, true} {
		t.Run(fmt.Sprintf("queue %v", queue), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := Calls{Queue: queue}
				release, made := make(chan struct{}), atomic.Int64{}
				fn := hangingCall(&made, release)
				if _, err := callWithin(t, &c, Call{Key: "hung"}, fn); !errors.Is(err, ErrLeft) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("first: %v, want ErrLeft and the deadline", err)
				}
				begin := time.Now()
				_, err := callWithin(t, &c, Call{Key: "hung"}, fn)
				if !errors.Is(err, ErrWaiting) || !errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrLeft) {
					t.Errorf("second: %v, want ErrWaiting", err)
				}
				if waited := time.Since(begin) == time.Second; waited != queue {
					t.Errorf("waited for %v", time.Since(begin))
				}
				if n, err := callWithin(t, &c, Call{Key: "other"}, func() (int, error) { return 3, nil }); n != 3 || err != nil {
					t.Errorf("another key: %d, %v", n, err)
				}
				if made.Load() != 1 || c.Abandoned() != 1 {
					t.Errorf("made %d times, %d left behind", made.Load(), c.Abandoned())
				}
				close(release)
				synctest.Wait()
				if n, err := callWithin(t, &c, Call{Key: "hung"}, fn); n != 2 || err != nil || c.Abandoned() != 0 || len(c.lastByKey) != 0 || c.runningCount != 0 {
					t.Errorf("after it has returned: %d, %v, %+v", n, err, &c)
				}
			})
		})
	}
}

func TestOneOfAKeyAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c Calls
		running, done := 0, make(chan error)
		for range 10 {
			go func() {
				_, err := Do(t.Context(), &c, Call{Key: "one"}, func() (int, error) {
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

// TestBounds: an owner of many calls that hang leaves room for others, up to the total.
func TestBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := Calls{Total: 5, PerOwner: 2}
		release, made := make(chan struct{}), atomic.Int64{}
		for i := range 12 {
			call := Call{Key: fmt.Sprint(i), Owner: fmt.Sprint(i / 4)}
			want := ErrLeft
			if i%4 >= 2 || made.Load() == 5 {
				want = ErrTooMany
			}
			if _, err := callWithin(t, &c, call, hangingCall(&made, release)); !errors.Is(err, want) {
				t.Errorf("call %d: %v, want %v", i, err, want)
			}
		}
		if made.Load() != 5 || c.Abandoned() != 5 {
			t.Errorf("made %d, left behind %d, want 5", made.Load(), c.Abandoned())
		}
		close(release)
		synctest.Wait()
		if _, err := callWithin(t, &c, Call{Owner: "0"}, hangingCall(&made, release)); err != nil || c.Abandoned() != 0 || len(c.countByOwner) != 0 {
			t.Errorf("after all have returned: %v, %+v", err, &c)
		}
	})
}

func TestGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := Calls{Grace: time.Second}
		slow := func(d time.Duration) func() (int, error) { return func() (int, error) { time.Sleep(d); return 1, nil } }
		if n, err := callWithin(t, &c, Call{}, slow(1900*time.Millisecond)); n != 1 || err != nil {
			t.Errorf("%d, %v within the grace", n, err)
		}
		begin := time.Now()
		if _, err := callWithin(t, &c, Call{}, slow(time.Minute)); !errors.Is(err, ErrLeft) || time.Since(begin) != 2*time.Second {
			t.Errorf("%v after %v, want ErrLeft after 2s", err, time.Since(begin))
		}
		time.Sleep(time.Hour)
	})
}

// TestEndedContext: a call that is made is counted, however short it is waited for.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var c Calls
		release, made := make(chan struct{}), atomic.Int64{}
		if _, err := Do(ctx, &c, Call{Key: "k"}, hangingCall(&made, release)); !errors.Is(err, context.Canceled) || c.Abandoned() != 1 {
			t.Errorf("%v, %d left behind", err, c.Abandoned())
		}
		close(release)
		synctest.Wait()
		if c.Abandoned() != 0 {
			t.Errorf("%d left behind in the end", c.Abandoned())
		}
	})
}
