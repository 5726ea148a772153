// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
	"kubediag.org/kubediag/internal/share"
)

// Budgets of the cluster and of workloads are shared by slots. Time is cut into periods in which a whole budget atOnce comes back.
// In each period there are a few slots, each a Lease that one agent can create. A slot is good for several repairs of that
// node in that period. So a budget holds without any component that counts, and without faults nothing is written.
const (
	// maxSlotTries is how many slots an agent tries to create one after another.
	maxSlotTries = 3
	// slotPrefix begins the names of slots.
	slotPrefix = "kubediag-slot-"
	// maxSlotClaims is how many budgets are remembered in a period. Namespaces share them.
	maxSlotClaims = 1000
	// minDivided is the least atOnce of a budget of the cluster that is divided: a node may have a quarter of its slots, and one namespace
	// three quarters. The last quarter is for all in the last quarter of the period.
	minDivided, divisor = 16, 4
	// dividedKey begins the keys of divided budgets alone. By it, admission knows slots of which a node may have a quarter.
	dividedKey = "f"
)

// slotBackoff is the wait after all slots that were tried were taken: from 2.5 to 5 seconds at first, and from 2.5 to
// 5 minutes in the end.
var slotBackoff = wait.Backoff{Duration: 2500 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 150 * time.Second, Steps: math.MaxInt}

// slots are an agent's parts of the budgets that nodes share.
type slots struct {
	node, namespace string
	client          client.Writer

	mu     sync.Mutex
	claims map[string]*claim // by key of the budget
	room   share.Room        // of the claims
}

// slotBudget is a budget that nodes share by slots.
type slotBudget struct {
	key   string // unique for the budget, its numbers included
	of    string // for people
	owner share.Owner
	// slots in each period, each good for so many repairs.
	slots, repairs int
	period         time.Duration
	// divided is set if nodes and namespaces have shares of it.
	divided bool
}

// newSlotBudget makes a budget of a policy; a divided one has twice as many slots, which leaves more of them to others.
func newSlotBudget(p *policy.Policy, of string, owner share.Owner, b *v1.RepairBudget, divided bool) *slotBudget {
	parts := []string{string(p.Object.UID), of, owner.Namespace, fmt.Sprint(b.AtOnce, b.PerHour)}
	if owner.Pod != "" {
		parts = append(parts, owner.Pod)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	// A slot that is good for more repairs saves writes, and leaves fewer nodes that may repair at once.
	repairs, key := int(math.Sqrt(float64(b.AtOnce))), "0"+hex.EncodeToString(sum[:8])[1:]
	if divided {
		repairs, key = repairs/2, dividedKey+key[1:]
	}
	return &slotBudget{
		key: key, of: of, owner: owner, repairs: repairs, slots: int(b.AtOnce) / repairs, divided: divided,
		period: time.Hour * time.Duration(b.AtOnce) / time.Duration(b.PerHour),
	}
}

// mayHave reports whether a node may have a slot of a budget. The slots of a divided one lie in rows of four. A node may have one of each
// row, which two numbers of its name choose; nodes whose numbers differ have few slots in common, or none. So no node has more than a
// quarter, and a node that has all of its quarter leaves most of the slots of any other. config/policy/agent-node.yaml computes the same.
func (s *slotBudget) mayHave(node string, slot int) bool {
	if !s.divided {
		return true
	}
	first, step := 0, 0
	for i := range len(node) {
		at := strings.IndexByte(nodeLetters, node[i])
		first, step = first+at, step+at/divisor
	}
	row := slot / divisor
	return slot%divisor == (first+row*step)%divisor
}

// nodeLetters are the letters of the names of nodes.
const nodeLetters = "abcdefghijklmnopqrstuvwxyz0123456789-."

// number is the number of the period that a time is in.
func (s *slotBudget) number(now time.Time) int64 { return now.UnixNano() / int64(s.period) }

// next is when more of the budget is free for all: in the last quarter of the period, or when the next one begins with a whole budget.
func (s *slotBudget) next(now time.Time) time.Time {
	begun := s.number(now) * int64(s.period)
	if at := time.Unix(0, begun+int64(s.period)/divisor*(divisor-1)); s.divided && now.Before(at) {
		return at
	}
	return time.Unix(0, begun+int64(s.period))
}

// kept is how many of so many repairs or slots are for others than one namespace now.
func (s *slotBudget) kept(n int, now time.Time) int {
	lastQuarter := now.UnixNano()%int64(s.period) >= int64(s.period)/divisor*(divisor-1)
	if !s.divided || lastQuarter {
		return 0
	}
	return n / divisor
}

// most is how many slots a node may have in a period.
func (s *slotBudget) most() int {
	if s.divided {
		return share.Quarter(s.slots)
	}
	return s.slots
}

// claim is an agent's part of a budget in a period.
type claim struct {
	period int64
	ends   time.Time
	owner  share.Owner
	// slots, and the repairs that they are good for: all, and those that are left.
	slots, got, left int
	namespaces       map[string]*claimant
}

// claimant is a namespace that has a part in a claim.
type claimant struct {
	taken int
	// notBefore is when a slot may be asked for again.
	notBefore time.Time
	backoff   wait.Backoff
}

// of is the part of a namespace.
func (c *claim) of(namespace string) *claimant {
	n := c.namespaces[namespace]
	if n == nil {
		n = &claimant{backoff: slotBackoff}
		c.namespaces[namespace] = n
	}
	return n
}

// forgetClaim forgets a claim.
func (o *slots) forgetClaim(key string) {
	if c := o.claims[key]; c != nil {
		o.room.Free(c.owner)
		delete(o.claims, key)
	}
}

// allow reports whether the agent may make a repair in a namespace from a budget. If not, pending says that it is to ask for a slot: it may, unless the
// node or the namespace has its share.
func (o *slots) allow(s *slotBudget, namespace string, now time.Time) (allowed, pending bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[s.key]
	if c == nil || c.period != s.number(now) {
		o.forgetClaim(s.key)
		if !o.room.May(s.owner) {
			for key, other := range o.claims {
				if !now.Before(other.ends) {
					o.forgetClaim(key)
				}
			}
		}
		if !o.room.Take(s.owner) { // the namespace has too many budgets
			return false, false
		}
		c = &claim{
			period: s.number(now), ends: time.Unix(0, (s.number(now)+1)*int64(s.period)), owner: s.owner, namespaces: map[string]*claimant{},
		}
		o.claims[s.key] = c
	}
	n := c.of(namespace)
	if c.left > s.kept(c.got, now) || c.left > 0 && n.taken < share.Quarter(c.got) {
		return true, false
	}
	return false, c.slots < s.most() && !now.Before(n.notBefore)
}

// take takes a repair that allow has allowed.
func (o *slots) take(s *slotBudget, namespace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[s.key]
	c.left--
	c.of(namespace).taken++
}

// claim tries to create some of the slots that a namespace may have in the present period, in random order. The others are for other
// namespaces. All nodes leave the same ones, without a word between them: a digest chooses these.
func (o *slots) claim(ctx context.Context, s *slotBudget, namespace string) error {
	now := time.Now()
	number := s.number(now)
	o.mu.Lock()
	c := o.claims[s.key]
	hasShare := c == nil || c.period != number || c.slots >= s.most() // another namespace may have asked at the same time
	o.mu.Unlock()
	if hasShare {
		return nil
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{s.key, fmt.Sprint(number), namespace}, "\x00")))
	order := rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[:]), binary.BigEndian.Uint64(sum[8:]))).Perm(s.slots)
	order = slices.DeleteFunc(order[s.kept(s.slots, now):], func(i int) bool { return !s.mayHave(o.node, i) })
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	seconds := int32(min(s.period/time.Second+1, math.MaxInt32))
	// Names have the begin of the period in milliseconds since 1970: so the API server can compare it with its clock, and refuse slots of
	// periods to come.
	begins := number * int64(s.period) / int64(time.Millisecond)
	for _, i := range order[:min(len(order), maxSlotTries)] {
		err := o.client.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.namespace, Name: fmt.Sprintf("%s%s-%d-%d", slotPrefix, s.key, begins, i),
				Labels: map[string]string{v1.LabelRepairSlot: s.key},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new(o.node), LeaseDurationSeconds: new(seconds), RenewTime: &metav1.MicroTime{Time: now},
			},
		})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("creating slot of a budget: %w", err)
		}
		o.record(s, namespace, number, s.repairs)
		return nil
	}
	o.record(s, namespace, number, 0)
	return nil
}

// record records the answer to a claim.
func (o *slots) record(s *slotBudget, namespace string, number int64, repairs int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.claims[s.key]
	if c == nil || c.period != number {
		return
	}
	n := c.of(namespace)
	if repairs == 0 {
		n.notBefore = time.Now().Add(n.backoff.Step())
		return
	}
	c.slots++
	c.got += repairs
	c.left += repairs
	n.backoff = slotBackoff
}
