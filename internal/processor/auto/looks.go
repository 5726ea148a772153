// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// maxLooksAtOnce is how many families look at one pod at a time. Each computes for some milliseconds, and waits for file systems that do not answer.
const maxLooksAtOnce = 2

// look is one call of a diagnoser.
type look struct {
	result processor.Result
	err    error
	failed error // set if the diagnoser panicked, or ended its goroutine
}

// runLooks has the targets looked at, some at once. The looks are in the order of the targets. It begins none after ctx has ended. A panic in one of
// them is its error, as it is where the caller panics.
func runLooks(ctx context.Context, targets []familyTarget, atOnce int) ([]look, error) {
	looks := make([]look, len(targets))
	var begun atomic.Int64
	run := func() {
		for {
			i := int(begun.Add(1)) - 1
			if i >= len(targets) || ctx.Err() != nil {
				return
			}
			looks[i].run(ctx, targets[i])
		}
	}
	var others sync.WaitGroup
	for range min(atOnce, len(targets)) - 1 {
		others.Go(run)
	}
	run()
	others.Wait()
	for _, l := range looks {
		if l.failed != nil {
			return nil, l.failed
		}
	}
	return looks, context.Cause(ctx)
}

func (l *look) run(ctx context.Context, t familyTarget) {
	l.failed = &repair.PanicError{Value: bounded.ErrEnded}
	defer func() {
		if p := recover(); p != nil {
			l.failed = &repair.PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	l.result, l.err = t.Diagnoser.Run(ctx, t.request)
	l.failed = nil
}
