// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subprocess_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/subprocess"
)

func TestMain(m *testing.M) {
	subprocess.Main(jobs...)
	os.Exit(m.Run())
}

type emitter = func(v any) error

var jobs = []subprocess.Job{
	{Name: "count", Run: func(_ context.Context, in []byte, emit emitter) error {
		var to int
		if err := json.Unmarshal(in, &to); err != nil {
			return err
		}
		for i := range to {
			if err := emit(i); err != nil {
				return err
			}
		}
		return nil
	}},
	{Name: "hang", Run: func(_ context.Context, _ []byte, emit emitter) error {
		if err := emit(os.Getpid()); err != nil {
			return err
		}
		<-time.After(time.Hour)
		return nil
	}},
	{Name: "length", Run: func(_ context.Context, in []byte, emit emitter) error { return emit(len(in)) }},
	{Name: "too long", Run: func(_ context.Context, _ []byte, emit emitter) error {
		return emit(strings.Repeat("x", 1<<20+100))
	}},
	{Name: "refuse", Run: func(context.Context, []byte, emitter) error { return errors.New("no such mount") }},
	{Name: "panic", Run: func(context.Context, []byte, emitter) error { panic("lost") }},
	{Name: "panic elsewhere", Run: func(context.Context, []byte, emitter) error {
		go panic("lost elsewhere")
		<-time.After(time.Hour)
		return nil
	}},
	{Name: "talk", Run: func(context.Context, []byte, emitter) error {
		fmt.Fprintln(os.Stdout, "hello")
		<-time.After(time.Hour)
		return nil
	}},
	{Name: "leave", Run: func(context.Context, []byte, emitter) error { os.Exit(3); return nil }},
	{Name: "look", Run: func(_ context.Context, _ []byte, emit emitter) error {
		dir, err := os.Getwd()
		files, failed := os.ReadDir("/proc/self/fd")
		links := map[string]string{}
		for _, f := range files {
			links[f.Name()], _ = os.Readlink("/proc/self/fd/" + f.Name())
		}
		return errors.Join(err, failed, emit(surroundings{dir, os.Environ(), links}))
	}},
	// parent starts another one and returns which.
	{Name: "parent", Run: func(ctx context.Context, _ []byte, emit emitter) error {
		var r subprocess.Runner
		return r.Run(ctx, subprocess.Options{Job: "hang", Deadline: time.Minute, Each: func(v json.RawMessage) error { return emit(v) }})
	}},
}

type surroundings struct {
	Dir   string
	Env   []string
	Files map[string]string
}

const enough = 30 * time.Second

func TestAnswersComeInOrder(t *testing.T) {
	t.Parallel()
	var (
		r    subprocess.Runner
		got  []int
		want []int
	)
	const many = 5000
	for i := range many {
		want = append(want, i)
	}
	err := r.Run(t.Context(), subprocess.Options{Job: "count", Input: many, Deadline: enough, Each: func(text json.RawMessage) error {
		var i int
		err := json.Unmarshal(text, &i)
		got = append(got, i)
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	awaitNoProcess(t, &r)
}

// TestBegun processes wait for their input, or are dropped.
func TestBegun(t *testing.T) {
	t.Parallel()
	r := &subprocess.Runner{MaxLingering: 1}
	options := subprocess.Options{Job: "length", Deadline: enough}
	begin := func() *subprocess.Begun {
		b, err := r.Begin(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	begun, got := begin(), ""
	err := begun.Finish("four", func(text json.RawMessage) error {
		got += string(text)
		return nil
	})
	if err != nil || got != "6" { // with its quotes
		t.Errorf("%q, %v", got, err)
	}
	begun.Drop() // does nothing any more
	awaitNoProcess(t, r)
	dropped := begin()
	dropped.Drop()
	dropped.Drop()
	awaitNoProcess(t, r)
	if err := begin().Finish(func() {}, nil); err == nil || !strings.Contains(err.Error(), `run job "length"`) {
		t.Errorf("an input that is no JSON: %v", err)
	}
	awaitNoProcess(t, r)
	options.Job, options.Deadline = "hang", 50*time.Millisecond
	if err := begin().Finish("late", nil); !errors.Is(err, subprocess.ErrDeadline) {
		t.Errorf("after its deadline: %v", err)
	}
	var none *subprocess.Begun
	none.Drop()
	awaitNoProcess(t, r)
}

// awaitNoProcess waits until every process has ended.
func awaitNoProcess(t *testing.T, r *subprocess.Runner) {
	t.Helper()
	kerneltest.Await(t, "no process lingers", func() bool { return r.Lingering() == 0 })
}

func TestLongInputArrives(t *testing.T) {
	t.Parallel()
	var r subprocess.Runner
	err := r.Run(t.Context(), subprocess.Options{Job: "length", Input: strings.Repeat("x", 5<<20), Deadline: enough,
		Each: func(text json.RawMessage) error {
			if string(text) != fmt.Sprint(5<<20+2) {
				t.Errorf("input has %s bytes", text)
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestChildBeginsWithNothing(t *testing.T) {
	t.Parallel()
	var (
		r   subprocess.Runner
		got surroundings
	)
	err := r.Run(t.Context(), subprocess.Options{Job: "look", Deadline: enough, Each: func(text json.RawMessage) error {
		return json.Unmarshal(text, &got)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got.Dir != "/" || len(got.Env) != 0 {
		t.Errorf("directory %q, environment %q", got.Dir, got.Env)
	}
	for _, number := range []string{"0", "1", "2"} {
		if !strings.HasPrefix(got.Files[number], "pipe:") {
			t.Errorf("descriptor %s is %q", number, got.Files[number])
		}
	}
}

// TestEndsThatAreNotGood checks the error of every other end of a job.
func TestEndsThatAreNotGood(t *testing.T) {
	t.Parallel()
	stop := errors.New("enough")
	for name, test := range map[string]struct {
		deadline time.Duration
		each     func(json.RawMessage) error
		is       error
		lost     bool
		says     string
	}{
		"hang":            {deadline: 300 * time.Millisecond, is: subprocess.ErrDeadline, lost: true, says: "by its deadline"},
		"refuse":          {says: `run job "refuse": no such mount`},
		"panic":           {says: "panic: lost"},
		"panic elsewhere": {lost: true, says: "panic: lost elsewhere"},
		"talk":            {lost: true, says: `"hello"`},
		"leave":           {lost: true, says: "process ended before the job was done"},
		"too long":        {says: "more than 1 MiB"},
		"unknown":         {says: `find job "unknown"`},
		"look":            {each: func(json.RawMessage) error { return stop }, is: stop, lost: true, says: "enough"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r subprocess.Runner
			o := subprocess.Options{Job: name, Deadline: enough, Each: test.each}
			if test.deadline != 0 {
				o.Deadline = test.deadline
			}
			err := r.Run(t.Context(), o)
			var lost *subprocess.LostError
			if err == nil || !strings.Contains(err.Error(), test.says) || errors.As(err, &lost) != test.lost {
				t.Fatalf("error %v, lost %v", err, lost)
			}
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("error is not %v", test.is)
			}
			if lost != nil {
				<-lost.Gone
			}
			awaitNoProcess(t, &r)
		})
	}
}

// TestExitStatusIsReported has processes end by themselves. If one takes too long to end it
// is not waited for, and its status is unknown.
func TestExitStatusIsReported(t *testing.T) {
	t.Parallel()
	var r subprocess.Runner
	for deadline := time.Now().Add(enough); ; {
		err := r.Run(t.Context(), subprocess.Options{Job: "leave", Deadline: enough})
		if err != nil && strings.HasSuffix(err.Error(), "process ended before the job was done: exit status 3") {
			break
		}
		if err == nil || time.Now().After(deadline) {
			t.Fatalf("error %v, want one with the status", err)
		}
		awaitNoProcess(t, &r)
	}
	awaitNoProcess(t, &r)
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	var r subprocess.Runner
	for says, o := range map[string]subprocess.Options{
		"deadline 0s":      {Job: "count"},
		"deadline -1s":     {Job: "count", Deadline: -time.Second},
		"unsupported type": {Job: "count", Deadline: enough, Input: make(chan int)},
		"input has":        {Job: "count", Deadline: enough, Input: strings.Repeat("x", 33<<20)},
	} {
		if err := r.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
}

// TestDeadlineKeepsAnswers checks that earlier answers are not lost, and that the deadline is kept.
func TestDeadlineKeepsAnswers(t *testing.T) {
	t.Parallel()
	var (
		r    subprocess.Runner
		pid  int
		lost *subprocess.LostError
	)
	const deadline = 5 * time.Second // which is time enough to answer in
	began := time.Now()
	err := r.Run(t.Context(), subprocess.Options{Job: "hang", Deadline: deadline, Each: func(text json.RawMessage) error {
		return json.Unmarshal(text, &pid)
	}})
	if took := time.Since(began); took < deadline || took > enough {
		t.Errorf("took %v", took)
	}
	if !errors.As(err, &lost) || pid == 0 || lost.PID != pid {
		t.Fatalf("process %d, error %v", pid, err)
	}
	<-lost.Gone
}

func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	var r subprocess.Runner
	ctx, cancel := context.WithCancel(t.Context())
	err := r.Run(ctx, subprocess.Options{Job: "hang", Deadline: enough, Each: func(json.RawMessage) error { cancel(); return nil }})
	var lost *subprocess.LostError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &lost) {
		t.Fatal(err)
	}
	<-lost.Gone
}

func TestBound(t *testing.T) {
	t.Parallel()
	r := subprocess.Runner{MaxLingering: 2}
	ctx, cancel := context.WithCancel(t.Context())
	var began, ended sync.WaitGroup
	for range 2 {
		began.Add(1)
		ended.Go(func() {
			err := r.Run(ctx, subprocess.Options{Job: "hang", Deadline: enough, Each: func(json.RawMessage) error { began.Done(); return nil }})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	began.Wait()
	if err := r.Run(t.Context(), subprocess.Options{Job: "count", Input: 1, Deadline: enough}); !errors.Is(err, subprocess.ErrTooMany) {
		t.Errorf("third process: %v", err)
	}
	cancel()
	ended.Wait()
	awaitNoProcess(t, &r)
	if err := r.Run(t.Context(), subprocess.Options{Job: "count", Input: 1, Deadline: enough}); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// TestOneOwnerLeavesRoom: one owner takes all processes that it may have, and each names the thing that it waits for.
func TestOneOwnerLeavesRoom(t *testing.T) {
	t.Parallel()
	r := subprocess.Runner{MaxLingering: 24}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	for _, waits := range []string{"a", "b"} {
		began := make(chan struct{})
		ended.Go(func() {
			each := func(json.RawMessage) error { close(began); return nil }
			_ = r.Run(ctx, subprocess.Options{Job: "hang", Deadline: enough, Owner: "one", Waits: []string{waits}, Each: each})
		})
		<-began
		if waits == "a" {
			continue
		}
		count := subprocess.Options{Job: "count", Input: 1, Deadline: enough, Owner: "one"}
		if err := r.Run(t.Context(), count); !errors.Is(err, subprocess.ErrTooMany) {
			t.Errorf("third process of the owner: %v", err)
		}
		count.Owner = "two"
		if err := r.Run(t.Context(), count); err != nil {
			t.Errorf("process of another owner: %v", err)
		}
	}
	cancel()
	ended.Wait()
	awaitNoProcess(t, &r)
}

// TestOneAfterTheOther has jobs that name the same follow one another at once: one that was done is waited for.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	var r subprocess.Runner
	for range 20 {
		if err := r.Run(t.Context(), subprocess.Options{Job: "count", Input: 1, Deadline: enough, Waits: []string{"device 7:1"}}); err != nil {
			t.Fatal(err)
		}
	}
	awaitNoProcess(t, &r)
}

// TestChildDiesWithItsParent kills a process that waits for one of its own.
func TestChildDiesWithItsParent(t *testing.T) {
	t.Parallel()
	var (
		r   subprocess.Runner
		pid int
	)
	stop := errors.New("known")
	err := r.Run(t.Context(), subprocess.Options{Job: "parent", Deadline: enough, Each: func(text json.RawMessage) error {
		return errors.Join(json.Unmarshal(text, &pid), stop)
	}})
	if !errors.Is(err, stop) || pid == 0 {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(enough); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// The process that adopts orphans may not have reaped it yet.
		if err != nil || strings.Contains(string(text), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there: %s", pid, text)
		}
	}
}
