// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/policy"
)

// Budgets of the cluster and of workloads are shared by slots. Time is cut into periods in which a whole budget atOnce comes back.
// In each period there are a few slots, each a Lease that one agent can create. A slot is good for several repairs of that
// node in that period. So a budget holds without any component that counts, and without faults nothing is written.
const (
	// maxSlotTries is how many slots an agent tries to create one after another.
	maxSlotTries = 3
	// firstSlotDelay is the wait after all of them were taken. It doubles, up to maxSlotDelay.
	firstSlotDelay, maxSlotDelay = 5 * time.Second, 5 * time.Minute
	// slotPrefix begins the names of slots.
	slotPrefix = "kubediag-slot-"
	// maxClaims is how many budgets are remembered.
	maxClaims = 1000
)

// share is a budget that nodes share.
type share struct {
	key string // unique for the budget, its numbers included
	of  string // for people
	// slots in each period, each good for so many repairs.
	slots, repairs int
	period         time.Duration
}

func newShare(p *policy.Policy, of, namespace string, b *v1.RepairBudget) *share {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(p.UID), of, namespace, fmt.Sprint(b.AtOnce, b.PerHour)}, "\x00")))
	// A slot that is good for more repairs saves writes, and leaves fewer nodes that may repair at once.
	repairs := int(math.Sqrt(float64(b.AtOnce)))
	return &share{
		key: hex.EncodeToString(sum[:8]), of: of, repairs: repairs, slots: int(b.AtOnce) / repairs,
		period: time.Hour * time.Duration(b.AtOnce) / time.Duration(b.PerHour),
	}
}

// number is the number of the period that a time is in.
func (s *share) number(now time.Time) int64 { return now.UnixNano() / int64(s.period) }

// claim is what an agent has of a share in a period.
type claim struct {
	period int64
	left   int
	// notBefore is when a slot may be asked for again, after delay.
	notBefore time.Time
	delay     time.Duration
}

// hasShare reports whether the agent may make a repair from a shared budget. If not, it asks for a slot. The caller holds the
// lock.
func (g *Guard) hasShare(s *share, now time.Time) bool {
	c := g.claims[s.key]
	if c == nil || c.period != s.number(now) {
		if len(g.claims) >= maxClaims {
			clear(g.claims)
		}
		c = &claim{period: s.number(now)}
		g.claims[s.key] = c
	}
	if c.left > 0 {
		return true
	}
	if !now.Before(c.notBefore) {
		g.requests.add("slot "+s.key, func(ctx context.Context) error { return g.claimSlot(ctx, s) })
	}
	return false
}

// isUsedUp reports whether no slot was left when the agent last asked. The caller holds the lock.
func (g *Guard) isUsedUp(s *share, now time.Time) bool { return now.Before(g.claims[s.key].notBefore) }

// claimSlot tries to create some of the slots of the present period, in random order.
func (g *Guard) claimSlot(ctx context.Context, s *share) error {
	now := time.Now()
	number := s.number(now)
	for _, i := range rand.Perm(s.slots)[:min(s.slots, maxSlotTries)] {
		err := g.Client.Create(ctx, g.slot(s, number, i, now))
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("creating slot of a budget: %w", err)
		}
		g.record(s, number, s.repairs)
		return nil
	}
	g.record(s, number, 0)
	return nil
}

// record records the answer to a claim.
func (g *Guard) record(s *share, number int64, repairs int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.claims[s.key]
	if c == nil || c.period != number {
		return
	}
	if c.left += repairs; repairs > 0 {
		c.delay = 0
		return
	}
	c.delay = min(max(firstSlotDelay, 2*c.delay), maxSlotDelay)
	c.notBefore = time.Now().Add(c.delay/2 + rand.N(c.delay/2))
}

func (g *Guard) slot(s *share, number int64, i int, now time.Time) *coordinationv1.Lease {
	seconds := int32(min(s.period/time.Second+1, math.MaxInt32))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.Namespace, Name: fmt.Sprintf("%s%s-%d-%d", slotPrefix, s.key, number, i),
			Labels: map[string]string{v1.LabelRepairSlot: s.key},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(g.Node), LeaseDurationSeconds: ptr.To(seconds), RenewTime: &metav1.MicroTime{Time: now},
		},
	}
}
