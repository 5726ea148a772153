// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/policy"
	"kubediag.org/kubediag/internal/share"
)

// maxPlaces is how many places of repairs are remembered for their cooldown.
const maxPlaces = 10000

// wholeVolume is where the volume of a fault is repaired, with all that is mounted from it.
func wholeVolume(key fault.Key) fault.Key { return fault.Key{PodUID: key.PodUID, Volume: key.Volume} }

// partTime is how long after the repair of a volume the repairs of its copies in containers are part of it.
const partTime = time.Minute

// cooldowns are when locations of faults were repaired last. Namespaces share their number.
type cooldowns struct {
	places map[fault.Key]cooldown
	room   share.Room
}

type cooldown struct {
	last  time.Time
	owner share.Owner
}

// waiting says which policy's cooldown has not passed at a location; empty if that of all has.
func (c *cooldowns) waiting(at fault.Key, policies []*policy.Policy, now time.Time) string {
	repaired, ok := c.places[at]
	if !ok {
		return ""
	}
	for _, p := range policies {
		if wait := p.Object.Spec.Cooldown(); now.Sub(repaired.last) < wait {
			return fmt.Sprintf("policy %s wants %s between two repairs of a mount", p.Object.Name, wait)
		}
	}
	return ""
}

// set records when a location was repaired last.
func (c *cooldowns) set(at fault.Key, namespace string, now time.Time) {
	repaired, ok := c.places[at]
	if !ok {
		repaired.owner = accountOf(at, namespace)
		if !c.room.May(repaired.owner) {
			for old, of := range c.places {
				if now.Sub(of.last) > time.Duration(v1.MaxCooldownSeconds)*time.Second {
					c.room.Free(of.owner)
					delete(c.places, old)
				}
			}
		}
		if !c.room.Take(repaired.owner) {
			return
		}
	}
	repaired.last = now
	c.places[at] = repaired
}

// waitsFor is how long a namespace counts as waiting for a repair after it was refused. Sentinels ask every few seconds.
const waitsFor = time.Minute

// nodeBudgets are the budgets of the node, by policy. Namespaces share each of them.
type nodeBudgets map[string]*share.Bucket

// bucket returns the budget of a policy, with the rest of it if the policy has changed; nil if it has none.
func (n nodeBudgets) bucket(p *policy.Policy, now time.Time) *share.Bucket {
	b := p.Object.Spec.Budgets
	if b == nil || b.Node == nil {
		return nil
	}
	all := paceOf(b.Node)
	each := all.Quarter()
	if b.Namespace != nil {
		each = paceOf(b.Namespace)
	}
	bucket := n[p.Object.Name]
	if bucket == nil {
		bucket = share.NewBucket(all, each)
		n[p.Object.Name] = bucket
	}
	bucket.Set(all, each, now)
	return bucket
}

func paceOf(b *v1.RepairBudget) share.Pace {
	return share.Pace{AtOnce: int(b.AtOnce), PerHour: float64(b.PerHour)}
}

// ownerOf is on whose account a repair is: the pod, or the node itself.
func ownerOf(pod *corev1.Pod) share.Owner {
	if pod == nil {
		return share.Owner{}
	}
	return share.Owner{Namespace: pod.Namespace, Pod: string(pod.UID)}
}

// take takes a repair of a pod from all budgets, or from none. Otherwise it says which is used up, or pending if the
// API server is being asked for a slot. The caller holds the lock.
func (g *Guard) take(pod *corev1.Pod, policies []*policy.Policy, now time.Time) (refusal policy.Reason, pending bool) {
	owner := ownerOf(pod)
	for _, p := range policies {
		b := g.budgets.bucket(p, now)
		if b == nil {
			continue
		}
		if answer := b.May(owner, now); !answer.OK {
			b.Wait(owner, now, waitsFor)
			if answer.Yields {
				return policy.Reason{
					Why:   fmt.Sprintf("the budget of policy %s for the node is kept for other namespaces and pods", p.Object.Name),
					Until: answer.Until,
				}, false
			}
			return usedUp(p, "the node", answer.Until), false
		}
	}
	var budgets []*slotBudget
	for _, p := range policies {
		for _, s := range slotBudgetsOf(p, pod) {
			allowed, pending := g.slots.allow(s, owner.Namespace, now)
			if pending {
				g.requests.add("slot "+s.key+" "+owner.Namespace, owner.Namespace, func(ctx context.Context) error { return g.slots.claim(ctx, s, owner.Namespace) })
			}
			if !allowed {
				return usedUp(p, s.of, s.next(now)), pending
			}
			budgets = append(budgets, s)
		}
	}
	for _, p := range policies {
		if b := g.budgets.bucket(p, now); b != nil {
			b.Take(owner, now)
		}
	}
	for _, s := range budgets {
		g.slots.take(s, owner.Namespace)
	}
	return policy.Reason{}, false
}

func usedUp(p *policy.Policy, of string, until time.Time) policy.Reason {
	return policy.Reason{Why: fmt.Sprintf("the budget of policy %s for %s is used up", p.Object.Name, of), Until: until}
}

// slotBudgetsOf are the budgets of a policy that nodes share, for a repair of a pod. A pod without a controller is a workload of its own:
// it may break again and again as a workload does, and no other pod of the namespace pays for it.
func slotBudgetsOf(selected *policy.Policy, pod *corev1.Pod) []*slotBudget {
	b := selected.Object.Spec.Budgets
	if b == nil {
		return nil
	}
	var all []*slotBudget
	if b.Cluster != nil {
		all = append(all, newSlotBudget(selected, "the cluster", share.Owner{}, b.Cluster, b.Cluster.AtOnce >= minDivided))
	}
	if pod == nil || b.Workload == nil {
		return all
	}
	of, owner := "pod "+pod.Name, ownerOf(pod)
	if w := kubelet.WorkloadOf(pod); w != (fault.Workload{}) {
		of, owner.Pod = w.String(), ""
	}
	return append(all, newSlotBudget(selected, of, owner, b.Workload, false))
}
