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

// breakerKey identifies a breaker of a policy. The one of all namespaces together has none.
type breakerKey struct{ code, pool, namespace string }

// failed are failed repairs of one fault.
type failed struct {
	namespace, node string
	repairs         int32
	last            time.Time
}

// counted is what is counted for one breaker.
type counted struct {
	nodes  map[string]map[string]bool // that have the fault, by namespace
	failed []failed
	// size is how many nodes the pool has.
	size int
	// several is set for the breaker of all namespaces: it opens for what comes from several of them.
	several bool
}

// failures counts the failed repairs of which the last came after a time, if they are enough to open a breaker. One node alone is not
// enough in a pool that has others: it counts for one less than is needed.
func (c *counted) failures(after time.Time, needed int32) (n int32, enough bool) {
	nodes, rows := map[string]int32{}, map[string]int{}
	for _, f := range c.failed {
		if f.last.After(after) {
			nodes[f.node] += f.repairs
			rows[f.namespace] += int(f.repairs)
		}
	}
	for _, row := range nodes {
		if c.size > 1 {
			row = min(row, max(1, needed-1))
		}
		n += row
	}
	return n, n >= needed && (c.size <= 1 || len(nodes) > 1) && (!c.several || share.Several(rows, int(needed)))
}

// faulty is how many nodes have the fault.
func (c *counted) faulty() int { return len(c.union("")) }

// faultyElsewhere is how many nodes have the fault in other namespaces than the one that has it on most nodes.
func (c *counted) faultyElsewhere() int {
	most := ""
	for _, namespace := range slices.Sorted(maps.Keys(c.nodes)) {
		if namespace != "" && (most == "" || len(c.nodes[namespace]) > len(c.nodes[most])) {
			most = namespace
		}
	}
	return len(c.union(most))
}

// union are the nodes that have the fault, except those that have it in one namespace only; empty: in any.
func (c *counted) union(except string) map[string]bool {
	all := map[string]bool{}
	for namespace, nodes := range c.nodes {
		if namespace != except || namespace == "" {
			maps.Copy(all, nodes)
		}
	}
	return all
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
		f := &mine[i]
		pool := p.Spec.Breaker.Pool(nodes[f.Status.Node])
		keys := []breakerKey{{code: f.Status.Code, pool: pool}}
		if f.Status.Pod != nil {
			keys = append(keys, breakerKey{f.Status.Code, pool, f.Namespace})
		}
		for _, key := range keys {
			if counts[key] == nil {
				counts[key] = &counted{nodes: map[string]map[string]bool{}, size: sizes[pool], several: key.namespace == ""}
			}
			counts[key].addFault(f, known(nodes, f.Status.Node), r.Clock.Now())
		}
	}
	return counts, nil
}

// addFault counts a fault. A node that is not known is not among those that the share is of. A time to come counts as the present: it is of a
// clock that is ahead, or made up.
func (c *counted) addFault(f *v1.MountFault, known bool, now time.Time) {
	namespace := ""
	if f.Status.Pod != nil {
		namespace = f.Namespace
	}
	if c.nodes[namespace] == nil {
		c.nodes[namespace] = map[string]bool{}
	}
	if known {
		c.nodes[namespace][f.Status.Node] = true
	}
	if r := f.Status.Recovery; r.FailedRepairs > 0 && r.LastFailureTime != nil {
		last := r.LastFailureTime.Time
		if last.After(now) {
			last = now
		}
		c.failed = append(c.failed, failed{namespace, f.Status.Node, r.FailedRepairs, last})
	}
}
