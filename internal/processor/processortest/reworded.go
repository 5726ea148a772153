// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package processortest has recoverers for tests of the code that builds on them.
package processortest

import (
	"context"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Reworded is a recoverer whose sentences are false, also those of its errors. All else of it is as it was, so no code that
// builds on it may behave in another way.
type Reworded struct{ repair.Family }

// Plan is that of the recoverer, in other words.
func (r Reworded) Plan(ctx context.Context, req processor.Request) (repair.Part, error) {
	p, err := r.Family.Plan(ctx, req)
	RewordActions(p.Actions)
	for i := range p.Findings {
		p.Findings[i].Evidence = []string{"nothing is wrong"}
	}
	if p.NotApplicable != "" {
		p.NotApplicable = "was done"
	}
	return p, reword(err)
}

// Open is that of the recoverer, and says how each action went in other words.
func (r Reworded) Open() repair.Apply {
	apply := r.Family.Open()
	return func(ctx context.Context, req processor.Request, a fault.Action) (fault.Applied, error) {
		done, err := apply(ctx, req, a)
		return RewordApplied(done), reword(err)
	}
}

// Verify is that of the recoverer, with other words for why it failed.
func (r Reworded) Verify(ctx context.Context, req processor.Request, p repair.Part) (processor.Result, error) {
	result, err := r.Family.Verify(ctx, req, p)
	if w := result.Wait; w != nil {
		end := w.End
		w.End = func(ctx context.Context, done bool, waited time.Duration) (processor.Result, error) {
			result, err := end(ctx, done, waited)
			return result, reword(err)
		}
	}
	return result, reword(err)
}

// RewordActions has the sentences of actions say the opposite.
func RewordActions(actions []fault.Action) {
	for i := range actions {
		a := &actions[i]
		a.Target, a.Safety, a.Loss = "/etc (inode 1, made 2)", "it is not safe", "nothing"
		if a.Lossless {
			a.Loss = "all that is stored there"
		}
	}
}

// RewordApplied has the message of an action that was applied say the opposite.
func RewordApplied(done fault.Applied) fault.Applied {
	if done.Already {
		done.Message = "changed just now"
	} else {
		done.Message = "was gone already"
	}
	return done
}

// reworded is an error with another text.
type reworded struct{ error }

func (reworded) Error() string   { return "was gone already" }
func (r reworded) Unwrap() error { return r.error }

func reword(err error) error {
	if err == nil {
		return nil
	}
	return reworded{err}
}
