// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/share"
)

const (
	// grace is the time after a breaker was closed in which failed repairs do not count. Agents take their counts back meanwhile.
	grace = 30 * time.Second
	// closedMemory is the time that a closed breaker stays in the status. It stays longer if too many nodes still have the fault.
	closedMemory = 24 * time.Hour
)

// change is a breaker that was opened or closed.
type change struct {
	v1.BreakerStatus
	// why it was closed.
	why string
}

// decide returns the next breakers of a policy, and which of them change.
func decide(p *v1.RecoveryPolicy, counts map[breakerKey]*counted, now time.Time) (all []v1.BreakerStatus, changes []change) {
	keys := map[breakerKey]bool{}
	for key := range counts {
		keys[key] = true
	}
	for _, b := range p.Status.Breakers {
		keys[breakerKey{b.Code, b.Pool, b.Namespace}] = true
	}
	order := slices.SortedFunc(maps.Keys(keys), func(a, b breakerKey) int {
		return cmp.Or(cmp.Compare(a.code, b.code), cmp.Compare(a.pool, b.pool), cmp.Compare(a.namespace, b.namespace))
	})
	for _, key := range order {
		b := v1.BreakerStatus{Code: key.code, Pool: key.pool, Namespace: key.namespace, State: v1.BreakerClosed}
		if known := p.Status.BreakerOf(key.code, key.pool, key.namespace); known != nil {
			b = *known
		}
		c := counts[key]
		if c == nil {
			c = &counted{}
		}
		if made := step(&b, p.Spec.Breaker, c, now); made != nil {
			changes = append(changes, *made)
		}
		if b.State == v1.BreakerOpen || b.NodesWhenClosed > 0 || b.ClosedTime != nil && now.Sub(b.ClosedTime.Time) < closedMemory {
			all = append(all, b)
		}
	}
	if len(all) <= v1.MaxBreakers {
		return all, changes
	}
	// The status has room for open ones first, and of these for the ones of all namespaces. Namespaces share the rest.
	var first, ofNamespaces, closed []v1.BreakerStatus
	for _, b := range all {
		switch {
		case b.State != v1.BreakerOpen:
			closed = append(closed, b)
		case b.Namespace == "":
			first = append(first, b)
		default:
			ofNamespaces = append(ofNamespaces, b)
		}
	}
	owner := func(b v1.BreakerStatus) share.Owner { return share.Owner{Namespace: b.Namespace} }
	return slices.Concat(first, share.InTurns(ofNamespaces, owner), share.InTurns(closed, owner))[:v1.MaxBreakers], changes
}

// step opens or closes one breaker if that is due, and returns the change.
func step(b *v1.BreakerStatus, spec *v1.RecoveryBreaker, c *counted, now time.Time) *change {
	at := metav1.NewTime(now.Truncate(time.Second))
	b.OpenedTime, b.ClosedTime = notAfter(b.OpenedTime, at), notAfter(b.ClosedTime, at)
	if b.State == v1.BreakerOpen {
		var why string
		switch reset, after := spec.ResetTime, spec.ResetAfterSeconds; {
		case b.OpenedTime == nil:
			why = "it has no time"
		case reset != nil && !reset.Before(b.OpenedTime) && !reset.After(now): // a time in the future closes no breaker yet
			why = "spec.breaker.resetTime was set"
		case after != nil && now.Sub(b.OpenedTime.Time) >= time.Duration(*after)*time.Second:
			why = fmt.Sprintf("it was open for %d seconds", *after)
		default:
			return nil
		}
		b.State, b.ClosedTime, b.NodesWhenClosed = v1.BreakerClosed, &at, int32(c.faulty())
		return &change{*b, why}
	}
	tooMany := c.tooMany(spec)
	if !tooMany {
		b.NodesWhenClosed = 0
	}
	var closed time.Time
	if b.ClosedTime != nil {
		closed = b.ClosedTime.Time
	}
	scope := ""
	if b.Namespace != "" {
		scope = ", in pods of namespace " + b.Namespace
	}
	var failures int32
	enough := false
	if spec.FailedRepairs != nil && now.Sub(closed) >= grace {
		failures, enough = c.failures(closed, *spec.FailedRepairs)
	}
	switch n := c.faulty(); {
	case enough:
		b.Reason, b.Message = v1.ReasonFailedRepairs, fmt.Sprintf("%d repairs in a row have failed", failures)+scope
	case tooMany && n > int(b.NodesWhenClosed):
		b.Reason = v1.ReasonTooManyNodes
		b.Message = fmt.Sprintf("%d of %d nodes have the fault, which is more than %d%%", n, c.size, *spec.MaximumNodesPercent) + scope
	default:
		return nil
	}
	b.State, b.OpenedTime = v1.BreakerOpen, &at
	return &change{BreakerStatus: *b}
}

// notAfter returns a time, or the limit if the time is later: a clock that was ahead has gone back since. Without this, no person could
// close a breaker that was opened then, and no failed repair would open one that was closed then.
func notAfter(t *metav1.Time, limit metav1.Time) *metav1.Time {
	if t != nil && t.After(limit.Time) {
		return &limit
	}
	return t
}

// tooMany reports whether a greater share of the nodes has the fault than the policy allows. For all namespaces, half of the least number
// of such nodes must have the fault without the namespace that has it on most nodes.
func (c *counted) tooMany(spec *v1.RecoveryBreaker) bool {
	if spec.MaximumNodesPercent == nil {
		return false
	}
	most := ""
	for _, namespace := range slices.Sorted(maps.Keys(c.nodes)) {
		if namespace != "" && (most == "" || len(c.nodes[namespace]) > len(c.nodes[most])) {
			most = namespace
		}
	}
	least := max(spec.MinimumNodes(), int(*spec.MaximumNodesPercent)*c.size/100+1)
	return c.faulty() >= least && (!c.several || len(c.union(most)) >= (least+1)/2)
}
