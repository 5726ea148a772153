// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// EvictAfter returns how long a fault lasts before its pod is evicted, if all policies that select it want that: the longest time.
// Otherwise ok is false, and by is the name of a policy that does not want it; empty if no policy selects the fault.
func EvictAfter(selecting []*Policy) (after time.Duration, ok bool, by string) {
	for _, p := range selecting {
		evict := p.Object.Spec.Evict()
		if evict == nil {
			return 0, false, p.Object.Name
		}
		after = max(after, time.Duration(evict.AfterSeconds)*time.Second)
	}
	return after, len(selecting) > 0, ""
}

// Cordon has the conditions for a fault to count for a cordon of its node.
type Cordon struct {
	// After is how long the fault has to last, and Pods how many pods of the node must have such faults.
	After time.Duration
	Pods  int
}

// CordonOf returns when a fault counts for a cordon, if all policies that select it want that: the greatest time and number.
func CordonOf(selecting []*Policy) (c Cordon, ok bool) {
	for _, p := range selecting {
		cordon := p.Object.Spec.Cordon()
		if cordon == nil {
			return Cordon{}, false
		}
		c.After = max(c.After, time.Duration(cordon.AfterSeconds)*time.Second)
		c.Pods = max(c.Pods, cordon.Pods())
	}
	return c, len(selecting) > 0
}

// Acts reports whether the policy can act on a fault or show it: it is valid, not paused, and its mode is neither
// Off nor Observe.
func (p *Policy) Acts() bool {
	return len(p.Problems) == 0 && !p.Object.Spec.Paused && rank(p.Object.Spec.Mode) > rank(v1.RecoveryObserve)
}
