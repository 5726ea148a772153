// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"

	"kubediag.org/kubediag/internal/faults"
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

// probeTarget is a mount as a target, or what is below its root. The owner is accountable if there is no answer.
func probeTarget(owner string, m mountns.Mount, below string, bind bool) probe.Target {
	return probe.Target{Owner: owner, Namespace: m.Namespace, Point: m.Point, ID: mount.IDOf(m), Below: below, Bind: bind}
}

// batchProber asks many targets at once, and counts them.
type batchProber struct {
	faults.Prober
	seen   *mountstate.Survey
	silent bool // a file system was, see Survey
}

// askAll asks all of it.
func (p *batchProber) askAll(ctx context.Context, requests []probeRequest) error {
	questions := make([]faults.Question, len(requests))
	for i, r := range requests {
		questions[i] = faults.Question{Target: r.target, Receive: func(a probe.Answer) {
			r.receive(a)
			p.silent = p.silent || a.State == probe.Silent
			if a.State != probe.NotProbed {
				p.seen.Coverage.Asked++
			}
		}}
	}
	return faults.AskAll(ctx, p.Prober, questions, func(err error) {
		p.seen.Unknown.AddGap("mounts of volumes that could not be asked", err.Error())
	})
}
