// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

func TestResultsArePassedOn(t *testing.T) {
	t.Parallel()
	last := gives("c", "3")
	j := newJob(t, nil, gives("a", "1"), gives("b", "2"), last)
	report := mustRun(t, newRunner(t, t.TempDir()), j)
	if diff := cmp.Diff(map[string]string{"param.x": "1", "a": "1", "b": "2"}, last.seen); diff != "" {
		t.Errorf("what the last operation saw (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2", "c": "3"}, report.Results); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if !report.Succeeded || report.Reached != 2 || !cmp.Equal(report.Path, []int32{1, 2, 3}) || report.Failed != nil {
		t.Errorf("report %+v", report)
	}
	if j.Request.Values["a"] != "" {
		t.Error("the parameters of the job were changed")
	}
}

// The second path begins at its beginning, and what both have in common does not run again.
func TestTheNextPathIsTriedFromItsBeginning(t *testing.T) {
	t.Parallel()
	first, bad, other, last := gives("a", "1"), declines("no such fault"), gives("b", "2"), gives("c", "3")
	j := newJob(t, [][]int32{{1}, {2, 3}, {4}, {4}, nil}, first, bad, other, last)
	report := mustRun(t, newRunner(t, t.TempDir()), j)
	if !report.Succeeded || !cmp.Equal(report.Path, []int32{1, 3, 4}) || !cmp.Equal(report.Failed, [][]int32{{1, 2, 4}}) {
		t.Errorf("path %v, failed %v", report.Path, report.Failed)
	}
	want := map[int32]v1.OperationPhase{1: v1.OperationSucceeded, 2: v1.OperationNotApplicable, 3: v1.OperationSucceeded, 4: v1.OperationSucceeded}
	if diff := cmp.Diff(want, outcomes(report)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if first.calls != 1 || bad.calls != 1 || len(report.Operations) != 4 {
		t.Errorf("%d and %d calls, %d operations", first.calls, bad.calls, len(report.Operations))
	}
}

func TestAllPathsFail(t *testing.T) {
	t.Parallel()
	j := newJob(t, [][]int32{{1, 2}, nil, nil}, declines("not this"), fails(processor.Stalled(errBroken)))
	report := mustRun(t, newRunner(t, t.TempDir()), j)
	if report.Succeeded || !cmp.Equal(report.Failed, [][]int32{{1}, {2}}) || !cmp.Equal(report.Path, []int32{2}) {
		t.Errorf("report %+v", report)
	}
	if o := report.Operations[1]; o.Reason != reasonStalled || o.Message != "broken" || o.Attempts != 1 {
		t.Errorf("operation %+v", o)
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	within := func(d, want time.Duration) bool { return d >= want*8/10 && d <= want*12/10 }
	for name, test := range map[string]struct {
		err   error
		waits []time.Duration
	}{
		"plain":                                 {errBroken, []time.Duration{time.Second, 2 * time.Second}},
		"stalled":                               {fmt.Errorf("wrapped: %w", processor.Stalled(errBroken)), nil},
		"waiting":                               {&processor.WaitingError{Err: errBroken, After: time.Minute}, []time.Duration{time.Minute, time.Minute}},
		"waiting for longer than there is time": {&processor.WaitingError{Err: errBroken, After: 2 * time.Hour}, nil},
		"waiting for less than nothing":         {&processor.WaitingError{Err: errBroken, After: -time.Hour}, []time.Duration{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := fails(test.err)
				report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, l))
				if l.calls != len(test.waits)+1 || int(report.Operations[0].Attempts) != l.calls {
					t.Fatalf("%d calls, %d attempts, want %d", l.calls, report.Operations[0].Attempts, len(test.waits)+1)
				}
				for i, want := range test.waits {
					if got := l.at[i+1].Sub(l.at[i]); !within(got, want) {
						t.Errorf("wait %d was %v, want about %v", i, got, want)
					}
				}
				if !strings.Contains(report.Operations[0].Message, "broken") {
					t.Errorf("message %q", report.Operations[0].Message)
				}
			})
		})
	}
}

func TestARetryCanSucceed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &fakeProcessor{}
		l.run = func(context.Context, processor.Request) (processor.Result, error) {
			if l.calls < 3 {
				return processor.Result{}, errBroken
			}
			return processor.Result{}, nil
		}
		report := mustRun(t, newRunner(t, t.TempDir()), newJob(t, nil, l))
		if !report.Succeeded || report.Operations[0].Attempts != 3 || report.Operations[0].Message != "" {
			t.Errorf("report %+v", report)
		}
	})
}

func TestBadProcessors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		run      func(ctx context.Context, r processor.Request) (processor.Result, error)
		reason   string
		message  string
		attempts int32
		took     time.Duration
	}{
		"panic": {func(_ context.Context, r processor.Request) (processor.Result, error) {
			return processor.Result{NotApplicable: strings.Fields(r.Pod.Name)[0]}, nil
		}, reasonPanicked, "panicked: runtime error: index out of range [0] with length 0", 1, 0},
		"ends its goroutine": {func(context.Context, processor.Request) (processor.Result, error) {
			runtime.Goexit()
			return processor.Result{}, nil
		}, reasonPanicked, "panicked: the goroutine was ended", 1, 0},
		"too slow": {func(ctx context.Context, _ processor.Request) (processor.Result, error) {
			<-ctx.Done()
			return processor.Result{}, ctx.Err()
		}, reasonTimedOut, "time limit of the operation has passed (timeoutSeconds: 60): context deadline exceeded", 3, 183 * time.Second},
		"never ends": {func(context.Context, processor.Request) (processor.Result, error) {
			time.Sleep(24 * time.Hour)
			return processor.Result{}, nil
		}, reasonAbandoned, "time limit of the operation has passed (timeoutSeconds: 60): did not stop in time, and was left behind", 1, time.Minute + repair.Grace},
		"too many keys": {func(context.Context, processor.Request) (processor.Result, error) {
			values := map[string]string{}
			for i := range maxKeys + 1 {
				values[fmt.Sprint(i)] = ""
			}
			return processor.Result{Values: values}, nil
		}, reasonStalled, "keeping results: 257 keys, at most 256", 1, 0},
		"empty key": {func(context.Context, processor.Request) (processor.Result, error) {
			return processor.Result{Values: map[string]string{"": "x"}}, nil
		}, reasonStalled, `keeping results: key "" must be printable, of 1 to 253 bytes`, 1, 0},
		"secret in an error": {func(context.Context, processor.Request) (processor.Result, error) {
			return processor.Result{}, processor.Stalled(errors.New("login failed: password=hunter2"))
		}, reasonStalled, "login failed: password=[redacted]", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRunner(t, t.TempDir())
				begin := time.Now()
				report := mustRun(t, r, newJob(t, nil, &fakeProcessor{run: test.run}))
				o := report.Operations[0]
				if o.Phase != v1.OperationFailed || o.Reason != test.reason || o.Message != test.message || o.Attempts != test.attempts {
					t.Errorf("operation %+v", o)
				}
				if took := time.Since(begin); took < test.took-time.Second || took > test.took+time.Second {
					t.Errorf("took %v, want about %v", took, test.took)
				}
				if want := int64(0); test.reason == reasonAbandoned {
					if want = 1; r.Abandoned() != want {
						t.Errorf("%d abandoned, want %d", r.Abandoned(), want)
					}
					time.Sleep(25 * time.Hour)
					synctest.Wait()
				}
				if r.Abandoned() != 0 {
					t.Errorf("%d abandoned in the end", r.Abandoned())
				}
			})
		})
	}
}

func TestPanicsLeaveTheirStackInTheJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustRun(t, newRunner(t, dir), newJob(t, nil, &fakeProcessor{run: explode}))
	text := journalText(t, dir)
	if !strings.Contains(text, "pipeline.explode") {
		t.Errorf("no stack in the journal:\n%s", text)
	}
}

func explode(context.Context, processor.Request) (processor.Result, error) { panic("no way") }

// TestAbandonedProcessorsAreShared: processors of one namespace that do not return take a quarter of the places, those of one pod half of
// that, and those of others find a place.
func TestAbandonedProcessorsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, uid := newRunner(t, t.TempDir()), 0
		run := func(diagnosis, pods, pod string) string {
			j := newJob(t, nil, &fakeProcessor{run: func(context.Context, processor.Request) (processor.Result, error) {
				time.Sleep(1000 * time.Hour)
				return processor.Result{}, nil
			}})
			uid++
			j.Request.Diagnosis.UID, j.Request.Diagnosis.Namespace = fmt.Sprint("uid-", uid), diagnosis
			j.Request.Pod.Namespace, j.Request.Pod.Name = pods, pod
			return mustRun(t, r, j).Operations[0].Reason
		}
		for i := range 3 * repair.MaxAbandoned {
			run("kubediag", "tenant", fmt.Sprint("pod-", i))
			run("kubediag", "shop", "one")
			run("team", "", "")
		}
		if n := r.Abandoned(); n < 6 || n > repair.MaxAbandoned*3/4 {
			t.Errorf("%d of three namespaces are abandoned", n)
		}
		if got := run("kubediag", "tenant", "last"); got != reasonStalled {
			t.Errorf("a namespace that has its share: reason %q", got)
		}
		if got := run("kubediag", "bank", "one"); got != reasonAbandoned {
			t.Errorf("a namespace that has none: reason %q", got)
		}
		time.Sleep(2000 * time.Hour)
		synctest.Wait()
		if got := run("kubediag", "tenant", "last"); got != reasonAbandoned || r.Abandoned() != 1 {
			t.Errorf("after all have returned: reason %q, %d are abandoned", got, r.Abandoned())
		}
		time.Sleep(2000 * time.Hour)
		synctest.Wait()
	})
}

func TestDeadlineOfTheRun(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context, _ processor.Request) (processor.Result, error) {
		select {
		case <-ctx.Done():
			return processor.Result{}, ctx.Err()
		case <-time.After(40 * time.Second):
			return processor.Result{}, nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		begin := time.Now()
		j := newJob(t, nil, &fakeProcessor{run: slow}, &fakeProcessor{run: slow}, gives("a", "1"))
		j.Deadline = begin.Add(time.Minute)
		report := mustRun(t, newRunner(t, dir), j)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("took %v, want the deadline", took)
		}
		if report.Succeeded || !report.DeadlineExceeded || report.Operations[1].Reason != reasonDeadlineExceeded || len(report.Operations) != 2 {
			t.Errorf("report %+v", report)
		}
		if diff := cmp.Diff(report, mustRun(t, newRunner(t, dir), j)); diff != "" {
			t.Errorf("run again (-first +second):\n%s", diff)
		}
	})
}

func TestDeadlineThatPassedWhileNobodyRan(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := gives("a", "1")
		j := newJob(t, nil, l)
		time.Sleep(2 * time.Hour)
		report := mustRun(t, newRunner(t, t.TempDir()), j)
		if l.calls != 0 || !report.DeadlineExceeded || report.Succeeded || len(report.Operations) != 0 {
			t.Errorf("%d calls, report %+v", l.calls, report)
		}
	})
}

var errGone = errors.New("it was deleted")

// A wait for another attempt ends when the run is cancelled.
func TestCancelledWhileWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errGone) })
		begin := time.Now()
		_, err := newRunner(t, t.TempDir()).run(ctx, newJob(t, nil, fails(&processor.WaitingError{Err: errBroken, After: 30 * time.Minute})))
		if !errors.Is(err, errGone) || time.Since(begin) != time.Minute {
			t.Errorf("error %v after %v", err, time.Since(begin))
		}
	})
}

func TestNoTwoRunsOfOneUID(t *testing.T) {
	t.Parallel()
	r := newRunner(t, t.TempDir())
	j := newJob(t, nil, gives("a", "1"))
	var second error
	j.Operations[1].Step.Processor.(*fakeProcessor).run = func(ctx context.Context, _ processor.Request) (processor.Result, error) {
		_, second = r.run(ctx, j)
		return processor.Result{}, nil
	}
	mustRun(t, r, j)
	if second == nil || !strings.Contains(second.Error(), "it runs already") {
		t.Errorf("error %v", second)
	}
}

func TestBadUIDs(t *testing.T) {
	t.Parallel()
	r := newRunner(t, t.TempDir())
	for _, uid := range []string{"", "..", "../x", "a/b", ".", "a.b", strings.Repeat("x", 129), "-x"} {
		j := newJob(t, nil, gives("a", "1"))
		j.Request.Diagnosis.UID = uid
		if _, err := r.run(t.Context(), j); err == nil || !strings.Contains(err.Error(), "cannot be the name of a file") {
			t.Errorf("UID %q: error %v", uid, err)
		}
	}
}

// ladder has rungs of two nodes, each leading to both of the next; whatever runs last fails.
func ladder(t testing.TB, rungs int, step func(last bool) *fakeProcessor) (job, []*fakeProcessor) {
	edges := [][]int32{{1, 2}}
	var looks []*fakeProcessor
	var steps []any
	for r := range rungs {
		next := []int32{int32(2*r + 3), int32(2*r + 4)}
		if r == rungs-1 {
			next = nil
		}
		edges = append(edges, next, next)
		for range 2 {
			looks = append(looks, step(r == rungs-1))
			steps = append(steps, looks[len(looks)-1])
		}
	}
	return newJob(t, edges, steps...), looks
}

func TestLadderRunsEachNodeOnce(t *testing.T) {
	t.Parallel()
	j, looks := ladder(t, 12, func(last bool) *fakeProcessor {
		if last {
			return declines("no")
		}
		return gives("a", "1")
	})
	report := mustRun(t, newRunner(t, t.TempDir()), j)
	for i, l := range looks {
		if l.calls > 1 {
			t.Errorf("node %d ran %d times", i+1, l.calls)
		}
	}
	if report.Succeeded || len(report.Operations) != 13 || len(report.Failed) != 2 {
		t.Errorf("%d operations, %d failed paths", len(report.Operations), len(report.Failed))
	}
}

// BenchmarkLadder25 is the worst case of 25 nodes and 4,096 paths: every node runs, and none of the last rung succeeds.
func BenchmarkLadder25(b *testing.B) {
	r := newRunner(b, b.TempDir())
	n := 0
	for b.Loop() {
		var j job
		j, _ = ladder(b, 12, func(last bool) *fakeProcessor {
			n++
			if last || n%2 == 1 {
				return declines("no")
			}
			return gives("a", "1")
		})
		j.Request.Diagnosis.UID = fmt.Sprint("uid-", n)
		if report := mustRun(b, r, j); len(report.Operations) != 24 {
			b.Fatal(len(report.Operations))
		}
	}
}
