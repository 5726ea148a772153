// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// diagnoserFunc is a diagnoser.
type diagnoserFunc func(ctx context.Context) (processor.Result, error)

func (diagnoserFunc) Name() string { return "fake" }

func (f diagnoserFunc) Run(ctx context.Context, _ processor.Request) (processor.Result, error) {
	return f(ctx)
}

func targetsOf(all ...diagnoserFunc) (targets []familyTarget) {
	for i, f := range all {
		targets = append(targets, familyTarget{Family: &Family{Name: fmt.Sprint(i), Diagnoser: f}})
	}
	return targets
}

// TestLooksAtOnce: two families look at the same time, a third waits for its turn, and the results are in the order of the families.
func TestLooksAtOnce(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	both := make(chan struct{})
	meet := func(name string) diagnoserFunc {
		return func(ctx context.Context) (processor.Result, error) {
			if now := running.Add(1); now == 2 {
				close(both)
			}
			defer running.Add(-1)
			most.Store(max(most.Load(), running.Load()))
			select {
			case <-both:
				return processor.Result{Message: name}, nil
			case <-ctx.Done():
				return processor.Result{}, ctx.Err()
			}
		}
	}
	last := func(context.Context) (processor.Result, error) {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		return processor.Result{Message: "c"}, errors.New("bad luck")
	}
	looks, err := runLooks(t.Context(), targetsOf(meet("a"), meet("b"), last), 2)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range looks {
		got = append(got, fmt.Sprint(l.result.Message, " ", l.err))
	}
	if diff := cmp.Diff([]string{"a <nil>", "b <nil>", "c bad luck"}, got); diff != "" || most.Load() > 2 {
		t.Errorf("%d at once; looks (-want +got):\n%s", most.Load(), diff)
	}
}

// TestLookThatPanics, or ends its goroutine, fails all, in whichever goroutine it is: it may have found nothing, and that is no clean answer.
func TestLookThatPanics(t *testing.T) {
	t.Parallel()
	well := func(context.Context) (processor.Result, error) { return processor.Result{}, nil }
	panics := func(context.Context) (processor.Result, error) { panic("bad luck") }
	for name, targets := range map[string][]familyTarget{"first": targetsOf(panics, well, well), "last": targetsOf(well, well, panics)} {
		_, err := runLooks(t.Context(), targets, 2)
		if p, ok := errors.AsType[*repair.PanicError](err); !ok || p.Value != "bad luck" || len(p.Stack) == 0 {
			t.Errorf("%s: error %v", name, err)
		}
	}
	begun := make(chan struct{})
	ends := func(context.Context) (processor.Result, error) {
		close(begun)
		runtime.Goexit()
		return processor.Result{}, nil
	}
	waits := func(context.Context) (processor.Result, error) {
		<-begun
		return processor.Result{}, nil
	}
	ended := make(chan struct{})
	go func() { // either of the two goroutines may have the target that ends
		defer close(ended)
		if _, err := runLooks(t.Context(), targetsOf(waits, ends), 2); err == nil {
			t.Error("a look that has ended its goroutine is no error")
		}
	}()
	<-ended
}

// TestLooksEnd: none begins after the end of the context, and its cause is the error.
func TestLooksEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	asked := 0
	ends := func(context.Context) (processor.Result, error) {
		asked++
		cancel(enough)
		return processor.Result{}, nil
	}
	if _, err := runLooks(ctx, targetsOf(ends, ends, ends), 1); !errors.Is(err, enough) || asked != 1 {
		t.Errorf("%d asked, error %v", asked, err)
	}
}
