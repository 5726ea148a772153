// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// scripted is a recoverer of one action that says one line after the other when it is applied, and hears in Verify what became
// of the action.
type scripted struct {
	says  []func() (fault.Applied, error)
	calls int
	heard fault.Applied
}

func (*scripted) Name() string { return "scripted" }

func (*scripted) Plan(context.Context, processor.Request) (repair.Part, error) {
	return repair.Part{Actions: []fault.Action{{Kind: "Unmount", Target: "/m"}}}, nil
}

func (s *scripted) Open() repair.Apply {
	return func(context.Context, processor.Request, fault.Action) (fault.Applied, error) {
		s.calls++
		return s.says[s.calls-1]()
	}
}

func (s *scripted) Verify(_ context.Context, _ processor.Request, p repair.Part) (processor.Result, error) {
	s.heard = p.Outcome(0)
	return processor.Result{}, nil
}

// Verify and the report hear that an action found nothing to do, unless an earlier try may have been what did it.
func TestWhatWasDoneAlready(t *testing.T) {
	t.Parallel()
	say := func(done fault.Applied, err error) func() (fault.Applied, error) {
		return func() (fault.Applied, error) { return done, err }
	}
	fails := func(err error) func() (fault.Applied, error) { return say(fault.AlreadySo("of no account"), err) }
	done, gone := say(fault.Applied{Message: "was unmounted"}, nil), say(fault.AlreadySo("no such mount"), nil)
	broken, waits := fails(errBroken), fails(&processor.WaitingError{Err: errBroken, After: time.Second})
	dies := say(fault.Applied{}, nil) // with its process: see below
	for name, test := range map[string]struct {
		says []func() (fault.Applied, error)
		dies bool // during the first call
		want bool
	}{
		"done":                          {[]func() (fault.Applied, error){done}, false, false},
		"gone":                          {[]func() (fault.Applied, error){gone}, false, true},
		"gone while it was waited for":  {[]func() (fault.Applied, error){waits, waits, gone}, false, true},
		"done after a wait":             {[]func() (fault.Applied, error){waits, done}, false, false},
		"gone after a failure":          {[]func() (fault.Applied, error){broken, gone}, false, false},
		"gone after a failure and wait": {[]func() (fault.Applied, error){broken, waits, gone}, false, false},
		"gone after a crash":            {[]func() (fault.Applied, error){dies, gone}, true, false},
	} {
		for words, reword := range map[string]func(r repair.Family) repair.Family{
			"":                    func(r repair.Family) repair.Family { return r },
			" and in other words": func(r repair.Family) repair.Family { return processortest.Reworded{Family: r} },
		} {
			t.Run(name+words, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := &scripted{says: test.says}
					r := reword(s)
					dir := t.TempDir()
					if test.dies {
						killed(t, dir, r)
					}
					checkAlready(t, dir, r, test.want)
					if s.heard.Already != test.want || s.calls != len(test.says) {
						t.Errorf("%d calls, Verify heard %+v, want already %v", s.calls, s.heard, test.want)
					}
				})
			})
		}
	}
}

// checkAlready runs the job, and once more from its journal.
func checkAlready(t *testing.T, dir string, r repair.Family, want bool) {
	t.Helper()
	var ended []ActionEnd
	j := newJob(t, nil, r)
	j.ActionEnded = func(_ string, _ func() report, a ActionEnd) { ended = append(ended, a) }
	for range 2 {
		o := mustRun(t, newRunner(t, dir), j).Operations[0]
		if a := o.Actions[0]; o.Phase != v1.OperationSucceeded || a.Phase != v1.ActionDone || a.Already != want {
			t.Errorf("operation %s, action %+v, want already %v", o.Phase, a, want)
		}
	}
	if last := ended[len(ended)-1]; last.Already != want {
		t.Errorf("ActionEnded heard already %v, want %v", last.Already, want)
	}
}

// killed runs the job in a process that ends when the first action was done, and before that is written down.
func killed(t *testing.T, dir string, step repair.Family) {
	t.Helper()
	r := newRunner(t, dir)
	defer r.Close()
	r.hook = func(before bool, rec record) {
		if before && rec.Kind == kindApplied {
			panic(death{})
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("it was not killed")
		}
	}()
	mustRun(t, r, newJob(t, nil, step))
}
