// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/linux/probe"
)

// Prober asks mounts whether they are alive, and never hangs: a *probe.Prober.
type Prober interface {
	// Ask returns one answer for each target, in their order.
	Ask(ctx context.Context, targets []probe.Target) ([]probe.Answer, error)
}

// Question is a target to ask, and the function that takes the answer. A target that there was no time for is asked again.
type Question struct {
	Target  probe.Target
	Receive func(probe.Answer)
}

func (q *Question) pathBytes() int {
	return len(q.Target.Point) + len(q.Target.ID.Root) + len(q.Target.Below)
}

var errShortReply = errors.New("probe returned an unexpected reply")

const (
	// maxPasses bounds how often targets are asked that there was no time for.
	maxPasses = 4
	// maxRequest bounds the paths in one batch, in bytes. The prober's process has to read it as a whole, and anybody
	// may have mounts at long paths: those of one pod must not make it too long for all.
	maxRequest = 2 << 20
)

// AskAll asks all of it, at once if it is not more than one batch. It asks the targets again that there was no time for, as long as that makes progress.
// failed is called with an error of the prober beside its answers, which say which are concerned.
func AskAll(ctx context.Context, p Prober, questions []Question, failed func(error)) error {
	for len(questions) > 0 {
		n, size := 0, 0
		for n < len(questions) && (n == 0 || size+questions[n].pathBytes() <= maxRequest) {
			size += questions[n].pathBytes()
			n++
		}
		batch := questions[:n]
		for pass := range maxPasses {
			left, err := askOnce(ctx, p, batch, failed)
			if err != nil {
				return err
			}
			if len(left) == 0 || len(left) == len(batch) && pass > 0 {
				break
			}
			batch = left
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		questions = questions[n:]
	}
	return nil
}

// askOnce returns those that were not asked.
func askOnce(ctx context.Context, p Prober, questions []Question, failed func(error)) (left []Question, err error) {
	targets := make([]probe.Target, len(questions))
	for i, q := range questions {
		targets[i] = q.Target
	}
	answers, err := p.Ask(ctx, targets)
	if len(answers) != len(questions) || ctx.Err() != nil {
		return nil, fmt.Errorf("ask %d mounts: %d answers: %w", len(targets), len(answers), cmp.Or(err, ctx.Err(), errShortReply))
	}
	if err != nil {
		failed(err)
	}
	for i, q := range questions {
		q.Receive(answers[i])
		if answers[i].State == probe.NotProbed {
			left = append(left, q)
		}
	}
	return left, nil
}
