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
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/policy"
)

// Budgets of the cluster and of workloads are shared by slots. Time is cut into periods in which a whole budget atOnce comes back.
// In each period there are a few slots, each a Lease that one agent can create. A slot is good for several repairs of that
// node in that period. So a budget holds without any component that counts, and without faults nothing is written.
const (
	// maxSlotTries is how many slots an agent tries to create one after another.
	maxSlotTries = 3
	// slotPrefix begins the names of slots.
	slotPrefix = "kubediag-slot-"
	// maxRememberedBudgets is how many budgets are remembered.
	maxRememberedBudgets = 1000
)

// slotBackoff is the wait after all slots that were tried were taken: from 2.5 to 5 seconds at first, and from 2.5 to
// 5 minutes in the end.
var slotBackoff = wait.Backoff{Duration: 2500 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 150 * time.Second, Steps: math.MaxInt}

// slots are what an agent has of the budgets that nodes share.
type slots struct {
	node, namespace string
	client          client.Writer
	requests        *requests

	mu     sync.Mutex
	claims map[string]*claim // by key of the share
}

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

// next is when the next period begins, with a whole budget.
func (s *share) next(now time.Time) time.Time { return time.Unix(0, (s.number(now)+1)*int64(s.period)) }

// claim is what an agent has of a share in a period.
type claim struct {
	period int64
	left   int
	// notBefore is when a slot may be asked for again.
	notBefore time.Time
	backoff   wait.Backoff
}

// allow reports whether the agent may make a repair from a shared budget. If not, it asks for a slot.
func (o *slots) allow(s *share, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[s.key]
	if c == nil || c.period != s.number(now) {
		if len(o.claims) >= maxRememberedBudgets {
			clear(o.claims)
		}
		c = &claim{period: s.number(now), backoff: slotBackoff}
		o.claims[s.key] = c
	}
	if c.left > 0 {
		return true
	}
	if !now.Before(c.notBefore) {
		o.requests.add("slot "+s.key, func(ctx context.Context) error { return o.claim(ctx, s) })
	}
	return false
}

// usedUp reports whether no slot was left when the agent last asked. allow was called before.
func (o *slots) usedUp(s *share, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Before(o.claims[s.key].notBefore)
}

// take takes a repair that allow has allowed.
func (o *slots) take(s *share) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims[s.key].left--
}

// claim tries to create some of the slots of the present period, in random order.
func (o *slots) claim(ctx context.Context, s *share) error {
	now := time.Now()
	number := s.number(now)
	for _, i := range rand.Perm(s.slots)[:min(s.slots, maxSlotTries)] {
		err := o.client.Create(ctx, o.lease(s, number, i, now))
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("creating slot of a budget: %w", err)
		}
		o.record(s, number, s.repairs)
		return nil
	}
	o.record(s, number, 0)
	return nil
}

// record records the answer to a claim.
func (o *slots) record(s *share, number int64, repairs int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[s.key]
	if c == nil || c.period != number {
		return
	}
	if c.left += repairs; repairs > 0 {
		c.backoff = slotBackoff
		return
	}
	c.notBefore = time.Now().Add(c.backoff.Step())
}

func (o *slots) lease(s *share, number int64, i int, now time.Time) *coordinationv1.Lease {
	seconds := int32(min(s.period/time.Second+1, math.MaxInt32))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.namespace, Name: fmt.Sprintf("%s%s-%d-%d", slotPrefix, s.key, number, i),
			Labels: map[string]string{v1.LabelRepairSlot: s.key},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(o.node), LeaseDurationSeconds: new(seconds), RenewTime: &metav1.MicroTime{Time: now},
		},
	}
}
