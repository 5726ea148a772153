// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// probeRequest is a target to ask, and the function that takes the answer.
type probeRequest struct {
	target  probe.Target
	receive func(probe.Answer)
}

func (r probeRequest) pathBytes() int {
	return len(r.target.Point) + len(r.target.ID.Root) + len(r.target.Below)
}

// probeTarget is a mount as a target, or what is below its root. The owner is accountable if there is no answer.
func probeTarget(owner string, m mountns.Mount, below string, bind bool) probe.Target {
	return probe.Target{Owner: owner, Namespace: m.Namespace, Point: m.Point, ID: mount.IDOf(m), Below: below, Bind: bind}
}

var errShortReply = errors.New("probe returned an unexpected reply")

const (
	// maxPasses bounds how often targets are asked that there was no time for.
	maxPasses = 4
	// maxRequest bounds the paths in one batch, in bytes. The prober's process has to read it as a whole, and anybody
	// may have mounts at long paths: those of one pod must not make it too long for all.
	maxRequest = 2 << 20
)

// batchProber asks many targets at once, and counts them.
type batchProber struct {
	Prober
	seen   *mountstate.Survey
	silent bool // a file system was, see Survey
}

// askAll asks all of it, at once if it is not more than one batch. It asks again what there was no time for, as long as that makes progress.
func (p *batchProber) askAll(ctx context.Context, requests []probeRequest) error {
	for len(requests) > 0 {
		n, size := 0, 0
		for n < len(requests) && (n == 0 || size+requests[n].pathBytes() <= maxRequest) {
			size += requests[n].pathBytes()
			n++
		}
		batch := requests[:n]
		for pass := range maxPasses {
			left, err := p.askOnce(ctx, batch)
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
		requests = requests[n:]
	}
	return nil
}

// askOnce returns those that were not asked.
func (p *batchProber) askOnce(ctx context.Context, requests []probeRequest) (left []probeRequest, err error) {
	targets := make([]probe.Target, len(requests))
	for i, r := range requests {
		targets[i] = r.target
	}
	answers, err := p.Ask(ctx, targets)
	if len(answers) != len(requests) || ctx.Err() != nil {
		return nil, fmt.Errorf("ask %d mounts: %d answers: %w", len(targets), len(answers), cmp.Or(err, ctx.Err(), errShortReply))
	}
	if err != nil { // the answers say which
		p.seen.Unknown.AddGap("mounts of volumes that could not be asked", err.Error())
	}
	for i, r := range requests {
		r.receive(answers[i])
		p.silent = p.silent || answers[i].State == probe.Silent
		if answers[i].State == probe.NotProbed {
			left = append(left, r)
		}
	}
	p.seen.Coverage.Asked += len(requests) - len(left)
	return left, nil
}
