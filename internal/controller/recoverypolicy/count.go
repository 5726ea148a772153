// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"context"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// breakerKey identifies a breaker of a policy.
type breakerKey struct{ code, pool string }

// failed are failed repairs of one fault.
type failed struct {
	repairs int32
	last    time.Time
}

// counted is what is counted for one breaker.
type counted struct {
	nodes  map[string]bool // that have the fault
	failed []failed
	// size is how many nodes the pool has.
	size int
}

// failures counts the failed repairs of which the last came after a time.
func (c *counted) failures(after time.Time) int32 {
	n := int32(0)
	for _, f := range c.failed {
		if f.last.After(after) {
			n += f.repairs
		}
	}
	return n
}

func known(nodes map[string]map[string]string, name string) bool {
	_, ok := nodes[name]
	return ok
}

// count counts the faults that a policy selects, by their codes and the pools of their nodes. Agents have written into a MountFault
// which policies select it.
func (r *Reconciler) count(ctx context.Context, e *pass) (map[breakerKey]*counted, error) {
	p := e.policy
	mine := slices.DeleteFunc(slices.Clone(e.faults), func(f v1.MountFault) bool {
		return f.Status.Recovery == nil || !slices.Contains(f.Status.Recovery.Policies, p.Name)
	})
	nodes, err := r.nodeLabels(ctx, nodesAge)
	if err == nil && slices.ContainsFunc(mine, func(f v1.MountFault) bool { return !known(nodes, f.Status.Node) }) {
		nodes, err = r.nodeLabels(ctx, 2*r.Every)
	}
	if err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, labels := range nodes {
		if p.SelectsNode(labels) {
			sizes[p.Spec.Breaker.Pool(labels)]++
		}
	}
	counts := map[breakerKey]*counted{}
	for i := range mine {
		s := &mine[i].Status
		pool := p.Spec.Breaker.Pool(nodes[s.Node])
		key := breakerKey{s.Code, pool}
		c := counts[key]
		if c == nil {
			c = &counted{nodes: map[string]bool{}, size: sizes[pool]}
			counts[key] = c
		}
		if known(nodes, s.Node) { // another one is not among those that the share is of
			c.nodes[s.Node] = true
		}
		if s.Recovery.FailedRepairs > 0 && s.Recovery.LastFailureTime != nil {
			c.failed = append(c.failed, failed{s.Recovery.FailedRepairs, s.Recovery.LastFailureTime.Time})
		}
	}
	return counts, nil
}
