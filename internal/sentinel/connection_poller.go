// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"maps"
	"slices"
)

// connState is the last known state of a connection.
type connState struct {
	dead bool
	// waitingPolls counts the polls in a row at which requests were waiting.
	waitingPolls int
}

// connectionPoller polls the FUSE connections of volumes, in turn.
type connectionPoller struct {
	states map[uint32]*connState // by minor device number
	order  []uint32
	last   int // the index of the connection polled last
}

// set replaces the connections. It keeps the state of those that stay.
func (p *connectionPoller) set(minors []uint32) {
	states := map[uint32]*connState{}
	for _, minor := range minors {
		if states[minor] = p.states[minor]; states[minor] == nil {
			states[minor] = &connState{}
		}
	}
	p.states, p.order = states, slices.Sorted(maps.Keys(states))
}

// poll reads the state of the next connections from the kernel, and reports whether a scan is due because of it.
func (p *connectionPoller) poll(kernel Connections) (changed bool) {
	for range min(maxPolledConnections, len(p.order)) {
		p.last = (p.last + 1) % len(p.order)
		minor := p.order[p.last]
		c, err := kernel.Connection(minor)
		if err != nil {
			continue
		}
		s := p.states[minor]
		changed = changed || c.Dead != s.dead
		s.dead = c.Dead
		if c.Waiting != 0 && !c.Dead {
			s.waitingPolls++
			changed = changed || s.waitingPolls == waitingPollLimit
		} else {
			changed = changed || s.waitingPolls >= waitingPollLimit
			s.waitingPolls = 0
		}
	}
	return changed
}
