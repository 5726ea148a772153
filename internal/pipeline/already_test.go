// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/processor"
)

// scripted is a recoverer of one action that says one line after the other when it is applied, and hears in Verify what became
// of the action.
type scripted struct {
	says  []func() (string, error)
	calls int
	heard string
}

func (*scripted) Name() string { return "scripted" }

func (*scripted) Plan(context.Context, processor.Request) (processor.Plan, error) {
	return processor.Plan{Actions: []processor.Action{{Kind: "Unmount", Target: "/m"}}}, nil
}

func (s *scripted) Apply(context.Context, processor.Request, processor.Action) (string, error) {
	s.calls++
	return s.says[s.calls-1]()
}

func (s *scripted) Verify(_ context.Context, _ processor.Request, p processor.Plan) (processor.Result, error) {
	s.heard = p.Actions[0].Already
	return processor.Result{}, nil
}

// Verify and the report hear that an action found nothing to do, unless an earlier try may have been what did it.
func TestWhatWasDoneAlready(t *testing.T) {
	t.Parallel()
	const gone = "was gone already"
	say := func(text string, err error) func() (string, error) {
		return func() (string, error) { return text, err }
	}
	waits := say("", &processor.WaitingError{Err: errBroken, After: time.Second})
	dies := func() (string, error) { return "", nil } // with its process: see below
	for name, test := range map[string]struct {
		says []func() (string, error)
		dies bool // during the first call
		want string
	}{
		"done":                          {[]func() (string, error){say("unmounted", nil)}, false, ""},
		"gone":                          {[]func() (string, error){say(gone, nil)}, false, gone},
		"gone while it was waited for":  {[]func() (string, error){waits, waits, say(gone, nil)}, false, gone},
		"done after a wait":             {[]func() (string, error){waits, say("unmounted", nil)}, false, ""},
		"gone after a failure":          {[]func() (string, error){say("", errBroken), say(gone, nil)}, false, ""},
		"gone after a failure and wait": {[]func() (string, error){say("", errBroken), waits, say(gone, nil)}, false, ""},
		"gone after a crash":            {[]func() (string, error){dies, say(gone, nil)}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir, s := t.TempDir(), &scripted{says: test.says}
				if test.dies {
					killed(t, dir, s)
				}
				var ended []ActionRun
				j := job(t, nil, s)
				j.ActionEnded = func(_ Report, a ActionRun) { ended = append(ended, a) }
				for range 2 { // the second time from the journal
					o := mustRun(t, newRunner(t, dir), j).Operations[0]
					if a := o.Actions[0]; o.Outcome != Succeeded || a.Phase != Done || a.Already != test.want {
						t.Errorf("operation %s, action %+v, want already %q", o.Outcome, a, test.want)
					}
				}
				if last := ended[len(ended)-1]; s.heard != test.want || last.Already != test.want || s.calls != len(test.says) {
					t.Errorf("%d calls, Verify heard %q, ActionEnded %q, want %q", s.calls, s.heard, last.Already, test.want)
				}
			})
		})
	}
}

// killed runs the job in a process that ends when the first action was done, and before that is written down.
func killed(t *testing.T, dir string, s *scripted) {
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
	mustRun(t, r, job(t, nil, s))
}
