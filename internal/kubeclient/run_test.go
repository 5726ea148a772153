// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// fake is a manager that behaves as that of controller-runtime does.
type fake struct {
	work    manager.Runnable
	filled  time.Duration // when its caches are filled, from its start on
	stop    time.Duration // how long it takes to stop what it has begun
	failure error         // what Start gives at the end
	refusal error         // what Add gives
}

func (f *fake) Add(r manager.Runnable) error {
	f.work = r
	return f.refusal
}

// Start does not look at ctx before the caches are filled.
func (f *fake) Start(ctx context.Context) error {
	time.Sleep(f.filled)
	if err := f.work.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	time.Sleep(f.stop)
	return f.failure
}

func TestRunStops(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	for name, tc := range map[string]struct {
		manager fake
		want    time.Duration // after ctx is done
		err     error
	}{
		"at work":                       {fake{stop: time.Second}, time.Second, nil},
		"long at work":                  {fake{stop: 20 * time.Second}, 20 * time.Second, nil},
		"fails to stop":                 {fake{stop: 20 * time.Second, failure: failure}, 20 * time.Second, failure},
		"caches are never filled":       {fake{filled: time.Hour}, patience, nil},
		"caches are filled meanwhile":   {fake{filled: 62 * time.Second, stop: 20 * time.Second, failure: failure}, 22 * time.Second, failure},
		"stops soon after being filled": {fake{filled: 61 * time.Second}, time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				began := time.Now()
				err := Run(ctx, &tc.manager)
				if got := time.Since(began) - time.Minute; got != tc.want || !errors.Is(err, tc.err) {
					t.Errorf("stopped after %v with %v, want %v with %v", got, err, tc.want, tc.err)
				}
				time.Sleep(2 * time.Hour) // what was left behind ends, or the bubble would not
			})
		})
	}
}

// ending is a manager that ends by itself, as one does that is no longer the leader.
type ending struct{ fake }

func (e *ending) Start(context.Context) error { return e.failure }

func TestRunFails(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	for name, m := range map[string]startable{
		"ends by itself":    &ending{fake{failure: failure}},
		"refuses to be run": &fake{refusal: failure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := Run(t.Context(), m); !errors.Is(err, failure) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// A manager that is not the leader has begun as well.
func TestBeganNeedsNoLeader(t *testing.T) {
	t.Parallel()
	if r, ok := any(began{}).(manager.LeaderElectionRunnable); !ok || r.NeedLeaderElection() {
		t.Error("only a leader would begin")
	}
}
