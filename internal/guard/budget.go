// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"maps"
	"math"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/policy"
)

// maxPlaces is how many places of repairs are remembered for their cooldown.
const maxPlaces = 10000

// place is where a repair is made.
type place struct{ podUID, container, point string }

func placeOf(f fault.Finding) place { return place{f.Pod.UID, f.Container, f.Mount.Point} }

// cooldowns are when places were repaired last.
type cooldowns map[place]time.Time

// waiting says which policy's cooldown has not passed at a place; empty if that of all has.
func (c cooldowns) waiting(at place, policies []*policy.Policy, now time.Time) string {
	last, ok := c[at]
	if !ok {
		return ""
	}
	for _, p := range policies {
		if cooldown := p.Spec.Cooldown(); now.Sub(last) < cooldown {
			return fmt.Sprintf("policy %s wants %s between two repairs of a mount", p.Name, cooldown)
		}
	}
	return ""
}

// set records when a place was repaired last.
func (c cooldowns) set(at place, now time.Time) {
	if len(c) >= maxPlaces {
		maps.DeleteFunc(c, func(_ place, last time.Time) bool {
			return now.Sub(last) > time.Duration(v1.MaxCooldownSeconds)*time.Second
		})
	}
	if len(c) < maxPlaces {
		c[at] = now
	}
}

// nodeBudgets are the budgets of the node, by policy.
type nodeBudgets map[string]*rate.Limiter

// limiter returns the budget of a policy, with the tokens that are left if the policy has changed; nil if it has none.
func (n nodeBudgets) limiter(p *policy.Policy, now time.Time) *rate.Limiter {
	b := p.Spec.Budgets
	if b == nil || b.Node == nil {
		return nil
	}
	perSecond, atOnce := rate.Limit(float64(b.Node.PerHour)/time.Hour.Seconds()), int(b.Node.AtOnce)
	l := n[p.Name]
	if l == nil {
		l = rate.NewLimiter(perSecond, atOnce)
		n[p.Name] = l
	}
	if l.Limit() != perSecond {
		l.SetLimitAt(now, perSecond)
	}
	if l.Burst() != atOnce {
		l.SetBurstAt(now, atOnce)
	}
	return l
}

// take takes a repair of a pod from all budgets, or from none. Otherwise it says which is used up, or pending if the
// API server is being asked for a share. The caller holds the lock.
func (g *Guard) take(pod *corev1.Pod, policies []*policy.Policy, now time.Time) (refusal policy.Reason, pending bool) {
	for _, p := range policies {
		if l := g.budgets.limiter(p, now); l != nil && l.TokensAt(now) < 1 {
			return usedUp(p, "the node", now.Add(untilToken(l, now))), false
		}
	}
	var shares []*share
	for _, p := range policies {
		for _, s := range sharesOf(p, pod) {
			if !g.slots.allow(s, now) {
				return usedUp(p, s.of, s.next(now)), !g.slots.usedUp(s, now)
			}
			shares = append(shares, s)
		}
	}
	for _, p := range policies {
		if l := g.budgets.limiter(p, now); l != nil {
			l.AllowN(now, 1)
		}
	}
	for _, s := range shares {
		g.slots.take(s)
	}
	return policy.Reason{}, false
}

func usedUp(p *policy.Policy, of string, until time.Time) policy.Reason {
	return policy.Reason{Why: fmt.Sprintf("the budget of policy %s for %s is used up", p.Name, of), Until: until}
}

// untilToken is how long a budget takes until it allows one repair more.
func untilToken(l *rate.Limiter, now time.Time) time.Duration {
	return time.Duration(math.Ceil((1-l.TokensAt(now))/float64(l.Limit()))) * time.Second
}

// sharesOf are the budgets of a policy that nodes share, for a repair of a pod.
func sharesOf(selected *policy.Policy, pod *corev1.Pod) []*share {
	b := selected.Spec.Budgets
	if b == nil {
		return nil
	}
	var all []*share
	if b.Cluster != nil {
		all = append(all, newShare(selected, "the cluster", "", b.Cluster))
	}
	if pod == nil {
		return all
	}
	if w := kubelet.WorkloadOf(pod); b.Workload != nil && w != (fault.Workload{}) {
		all = append(all, newShare(selected, w.String(), pod.Namespace, b.Workload))
	}
	return all
}
