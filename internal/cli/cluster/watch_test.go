// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/verb"
)

// followedServer has MountFaults that are followed. Its watches end when the test says so.
type followedServer struct {
	ctrlclient.WithWatch

	mu      sync.Mutex
	err     error // of lists and watches
	watches []watch.Interface
}

// answer has all lists and watches from now on answered with an error; nil: as they should be.
func (s *followedServer) answer(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *followedServer) answered() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func newFollowedServer(t *testing.T) *followedServer {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &followedServer{}
	s.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
			return errors.Join(s.answered(), c.List(ctx, list, opts...))
		},
		Watch: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) (watch.Interface, error) {
			if err := s.answered(); err != nil {
				return nil, err
			}
			w, err := c.Watch(ctx, list, opts...)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.watches = append(s.watches, w)
			return w, err
		},
	}).Build()
	return s
}

// put creates a fault, or changes it.
func (s *followedServer) put(t *testing.T, name, uid, text string) {
	t.Helper()
	f := &v1.MountFault{}
	f.Namespace, f.Name, f.UID = "shop", name, types.UID(uid)
	f.Status.Summary = text
	old := &v1.MountFault{}
	err := s.Get(t.Context(), ctrlclient.ObjectKeyFromObject(f), old)
	if err == nil {
		f.ResourceVersion = old.ResourceVersion
		err = s.Update(t.Context(), f)
	} else {
		err = s.Create(t.Context(), f)
	}
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func (s *followedServer) remove(t *testing.T, name string) {
	t.Helper()
	f := &v1.MountFault{}
	f.Namespace, f.Name = "shop", name
	if err := s.Delete(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// setError has all requests fail with an error, ends the watch, and waits.
func (s *followedServer) setError(err error, wait time.Duration) {
	s.answer(err)
	s.mu.Lock()
	last := s.watches[len(s.watches)-1]
	s.mu.Unlock()
	last.Stop()
	time.Sleep(wait)
	synctest.Wait()
}

// TestWatcher: each change is handed on once, also those while the API server was away, which is reported once. A refusal ends it.
func TestWatcher(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do   func(*testing.T, *followedServer)
		want []string // changes, and the times at which the connection was lost
		err  error
	}{
		"changes": {func(t *testing.T, s *followedServer) {
			s.put(t, "a", "1", "worse")
			s.put(t, "b", "2", "new")
			s.remove(t, "b")
		}, []string{"MODIFIED a 1 worse", "ADDED b 2 new", "DELETED b 2 new"}, nil},
		"a watch that ends": {func(t *testing.T, s *followedServer) {
			s.setError(nil, 2*watchRetry)
			s.put(t, "b", "2", "new")
		}, []string{"ADDED b 2 new"}, nil},
		"away": {func(t *testing.T, s *followedServer) {
			s.setError(errors.New("away"), time.Minute)
			s.put(t, "a", "1", "worse")
			s.put(t, "b", "2", "new")
			s.answer(nil)
			time.Sleep(2 * watchRetry)
			synctest.Wait()
			s.put(t, "b", "2", "worse")
		}, []string{"lost: away", "MODIFIED a 1 worse", "ADDED b 2 new", "MODIFIED b 2 worse"}, nil},
		"away twice": {func(_ *testing.T, s *followedServer) {
			for range 2 {
				s.setError(errors.New("away"), time.Minute)
				s.answer(nil)
				time.Sleep(2 * watchRetry)
				synctest.Wait()
			}
		}, []string{"lost: away", "lost: away"}, nil},
		"made again while it was away": {func(t *testing.T, s *followedServer) {
			s.setError(errors.New("away"), time.Minute)
			s.remove(t, "a")
			s.put(t, "a", "2", "other")
			s.answer(nil)
			time.Sleep(2 * watchRetry)
			synctest.Wait()
		}, []string{"lost: away", "ADDED a 2 other", "DELETED a 1 old"}, nil},
		"refused": {func(_ *testing.T, s *followedServer) {
			s.setError(fmt.Errorf("%w: no right", verb.ErrRefused), time.Minute)
		}, nil, verb.ErrRefused},
		"not served": {func(_ *testing.T, s *followedServer) {
			s.setError(errNotServed, time.Minute)
		}, nil, errNotServed},
		"done": {func(t *testing.T, s *followedServer) {
			s.put(t, "end", "2", "")
			s.put(t, "b", "3", "after the end")
		}, []string{"ADDED end 2 "}, errDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFollowedServer(t)
				s.put(t, "a", "1", "old")
				var got []string
				w := &objectWatcher{
					server: s, newList: func() ctrlclient.ObjectList { return &v1.MountFaultList{} }, options: []ctrlclient.ListOption{ctrlclient.InNamespace("shop")},
					connectionLost: func(err error) { got = append(got, "lost: "+err.Error()) },
				}
				if items, err := w.listFirst(t.Context()); err != nil || len(items) != 1 {
					t.Fatalf("%d items, %v", len(items), err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- w.followChanges(ctx, func(now objectChange) error {
						f, ok := now.object.(*v1.MountFault)
						if !ok {
							t.Errorf("%T", now.object)
							return nil
						}
						got = append(got, fmt.Sprintf("%s %s %s %s", now.kind, f.Name, f.UID, f.Status.Summary))
						if f.Name == "end" {
							return errDone
						}
						return nil
					})
				}()
				synctest.Wait()
				tc.do(t, s)
				if tc.err == nil {
					cancel()
				}
				if err := <-ended; tc.err == nil && !errors.Is(err, context.Canceled) || tc.err != nil && !errors.Is(err, tc.err) {
					t.Errorf("ended with %v, want %v", err, tc.err)
				}
				cancel()
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				if all, complete := w.known(); tc.err == nil && (len(all) != countFaults(t, s) || !complete) {
					t.Errorf("%d faults are known, want %d", len(all), countFaults(t, s))
				}
			})
		})
	}
}

// TestFollowedState: a report has the objects as they are followed, and asks the API server for them after the end.
func TestFollowedState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFollowedServer(t)
		s.put(t, "a", "1", "old")
		ctx, cancel := context.WithCancel(t.Context())
		var changes atomic.Int32
		state := followState(ctx, &client{server: s}, "shop", defaultHome, func() { changes.Add(1) })
		check := func(want int, wantErr error) {
			t.Helper()
			all, err := listForPage[*v1.MountFault](t.Context(), state, &v1.MountFaultList{}, "shop")
			if len(all) != want || !errors.Is(err, wantErr) {
				t.Errorf("%d faults, %v; want %d, %v", len(all), err, want, wantErr)
			}
		}
		check(1, nil)
		before := changes.Load()
		s.put(t, "b", "2", "new")
		s.answer(errDone)
		check(2, nil)
		if changes.Load() == before {
			t.Error("a change was not reported")
		}
		cancel()
		synctest.Wait()
		check(0, errDone)
	})
}

func countFaults(t *testing.T, s *followedServer) int {
	t.Helper()
	var list v1.MountFaultList
	if err := s.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}
