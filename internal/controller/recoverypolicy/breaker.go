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
	// grace is how long after a breaker was closed failed repairs do not count. Agents take their counts back meanwhile.
	grace = 30 * time.Second
	// closedMemory is how long a closed breaker is kept in the status, or longer if too many nodes still have the fault.
	closedMemory = 24 * time.Hour
)

// change is a breaker that was opened or closed.
type change struct {
	v1.BreakerStatus
	// why it was closed.
	why string
}

// decide returns the breakers of a policy as they are to be, and which of them change.
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
	return chosen(all), changes
}

// chosen are those breakers that there is room for: open ones first, and of these the ones for all namespaces. Namespaces share the rest.
func chosen(all []v1.BreakerStatus) []v1.BreakerStatus {
	if len(all) <= v1.MaxBreakers {
		return all
	}
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
	return slices.Concat(first, share.InTurns(ofNamespaces, owner), share.InTurns(closed, owner))[:v1.MaxBreakers]
}

// step opens or closes one breaker if that is due, and returns the change.
func step(b *v1.BreakerStatus, spec *v1.RecoveryBreaker, c *counted, now time.Time) *change {
	at := metav1.NewTime(now.Truncate(time.Second))
	b.OpenedTime, b.ClosedTime = notAfter(b.OpenedTime, at), notAfter(b.ClosedTime, at)
	if b.State == v1.BreakerOpen {
		why := closes(b, spec, now)
		if why == "" {
			return nil
		}
		b.State, b.ClosedTime, b.NodesWhenClosed = v1.BreakerClosed, &at, int32(c.faulty())
		return &change{*b, why}
	}
	if !tooMany(spec, c) {
		b.NodesWhenClosed = 0
	}
	reason, message := opens(b, spec, c, now)
	if reason == "" {
		return nil
	}
	b.State, b.Reason, b.Message, b.OpenedTime = v1.BreakerOpen, reason, message, &at
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

// closes says why an open breaker is to be closed; empty if it is not. A time in the future closes nothing yet.
func closes(b *v1.BreakerStatus, spec *v1.RecoveryBreaker, now time.Time) string {
	if b.OpenedTime == nil {
		return "it has no time"
	}
	if reset := spec.ResetTime; reset != nil && !reset.Before(b.OpenedTime) && !reset.After(now) {
		return "spec.breaker.resetTime was set"
	}
	if after := spec.ResetAfterSeconds; after != nil && now.Sub(b.OpenedTime.Time) >= time.Duration(*after)*time.Second {
		return fmt.Sprintf("it was open for %d seconds", *after)
	}
	return ""
}

// opens says why a closed breaker is to be opened; no reason if it is not.
func opens(b *v1.BreakerStatus, spec *v1.RecoveryBreaker, c *counted, now time.Time) (reason, message string) {
	var closed time.Time
	if b.ClosedTime != nil {
		closed = b.ClosedTime.Time
	}
	if spec.FailedRepairs != nil && now.Sub(closed) >= grace {
		if n, enough := c.failures(closed, *spec.FailedRepairs); enough {
			return v1.ReasonFailedRepairs, fmt.Sprintf("%d repairs in a row have failed", n) + breakerScope(b)
		}
	}
	if n := c.faulty(); tooMany(spec, c) && n > int(b.NodesWhenClosed) {
		return v1.ReasonTooManyNodes, fmt.Sprintf("%d of %d nodes have the fault, which is more than %d%%", n, c.size, *spec.MaximumNodesPercent) + breakerScope(b)
	}
	return "", ""
}

// breakerScope says whose pods a breaker is about; nothing for that of all namespaces.
func breakerScope(b *v1.BreakerStatus) string {
	if b.Namespace == "" {
		return ""
	}
	return ", in pods of namespace " + b.Namespace
}

// tooMany reports whether a greater share of the nodes has the fault than the policy allows. For all namespaces, half of those that are
// too many must have it without the namespace that has it on most nodes.
func tooMany(spec *v1.RecoveryBreaker, c *counted) bool {
	if spec.MaximumNodesPercent == nil {
		return false
	}
	least := max(spec.MinimumNodes(), int(*spec.MaximumNodesPercent)*c.size/100+1)
	return c.faulty() >= least && (!c.several || c.faultyElsewhere() >= (least+1)/2)
}
