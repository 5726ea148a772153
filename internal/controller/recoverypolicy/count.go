// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

// breakerKey identifies a breaker of a policy. The breaker of all namespaces together has no namespace.
type breakerKey struct{ code, pool, namespace string }

// failed are failed repairs of one fault.
type failed struct {
	namespace, node string
	repairs         int32
	last            time.Time
}

// counted has the counts for one breaker.
type counted struct {
	nodes  map[string]map[string]bool // that have the fault, by namespace
	failed []failed
	// size is the number of nodes in the pool. alone is set if the policy selects no other node than one.
	size  int
	alone bool
	// several is set for the breaker of all namespaces: it opens for faults and failures from several of them.
	several bool
}

// failures counts the failed repairs of faults whose last one came after a time, and reports whether they are enough to open a breaker.
// One node alone is not enough if the policy selects others, of this pool or not: it counts for one less than needed.
func (c *counted) failures(after time.Time, needed int32) (n int32, enough bool) {
	nodes, rows := map[string]int32{}, map[string]int{}
	for _, f := range c.failed {
		if f.last.After(after) {
			nodes[f.node] += f.repairs
			rows[f.namespace] += int(f.repairs)
		}
	}
	for _, row := range nodes {
		if !c.alone {
			row = min(row, max(1, needed-1))
		}
		n += row
	}
	return n, n >= needed && (c.alone || len(nodes) > 1) && (!c.several || share.Several(rows, int(needed)))
}

// faulty counts the nodes that have the fault.
func (c *counted) faulty() int { return len(c.union("")) }

// union returns the nodes that have the fault, without those that have it in one namespace only. An empty name excludes no node.
func (c *counted) union(except string) map[string]bool {
	all := map[string]bool{}
	for namespace, nodes := range c.nodes {
		if namespace != except || namespace == "" {
			maps.Copy(all, nodes)
		}
	}
	return all
}

// count counts the faults that a policy selects, by their codes and the pools of their nodes. The agents name the policies that select
// a fault in its MountFault.
func (r *Reconciler) count(ctx context.Context, e *pass) (map[breakerKey]*counted, error) {
	p := e.policy
	mine := slices.DeleteFunc(slices.Clone(e.faults), func(f v1.MountFault) bool {
		return f.Status.Recovery == nil || !slices.Contains(f.Status.Recovery.Policies, p.Object.Name)
	})
	nodes, err := r.nodeLabels(ctx, nodesAge)
	unknown := func(f v1.MountFault) bool {
		_, known := nodes[f.Status.Node]
		return !known
	}
	if err == nil && slices.ContainsFunc(mine, unknown) {
		nodes, err = r.nodeLabels(ctx, 2*r.Every)
	}
	if err != nil {
		return nil, err
	}
	sizes, selected := map[string]int{}, 0
	for _, labels := range nodes {
		if p.SelectsNode(labels) {
			selected++
			sizes[p.Object.Spec.Breaker.Pool(labels)]++
		}
	}
	now := r.Clock.Now()
	counts := map[breakerKey]*counted{}
	for i := range mine {
		f := &mine[i].Status
		pool, namespace := p.Object.Spec.Breaker.Pool(nodes[f.Node]), ""
		keys := []breakerKey{{code: f.Code, pool: pool}}
		if f.Pod != nil {
			namespace = mine[i].Namespace
			keys = append(keys, breakerKey{f.Code, pool, namespace})
		}
		for _, key := range keys {
			c := counts[key]
			if c == nil {
				c = &counted{nodes: map[string]map[string]bool{}, size: sizes[pool], alone: selected <= 1, several: key.namespace == ""}
				counts[key] = c
			}
			if c.nodes[namespace] == nil {
				c.nodes[namespace] = map[string]bool{}
			}
			if !unknown(mine[i]) { // the share is of known nodes
				c.nodes[namespace][f.Node] = true
			}
			if last := f.Recovery.LastFailureTime; f.Recovery.FailedRepairs > 0 && last != nil {
				failure := failed{namespace, f.Node, f.Recovery.FailedRepairs, last.Time}
				if failure.last.After(now) { // by a clock that is ahead, or made up
					failure.last = now
				}
				c.failed = append(c.failed, failure)
			}
		}
	}
	return counts, nil
}
