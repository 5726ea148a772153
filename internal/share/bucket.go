// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"maps"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// Pace bounds the number that may be taken without a pause, and the number that comes back in an hour.
type Pace struct {
	AtOnce  int
	PerHour float64
}

// Quarter is the share of one namespace, if no other is set.
func (p Pace) Quarter() Pace { return Pace{Quarter(p.AtOnce), max(1, p.PerHour/perNamespace)} }

func (p Pace) limit() rate.Limit { return rate.Limit(p.PerHour / time.Hour.Seconds()) }

// perKept: an eighth of a budget is kept for namespaces that have not used up their share.
const perKept = 8

// Bucket is a budget that comes back with time. One namespace may have all of it but the eighth that is kept for others. It stays
// within its share only while another namespace waits that has not used up its own. The pods of a namespace share in the same way.
type Bucket struct {
	all        *rate.Limiter
	each       Pace
	namespaces accounts
}

// accounts count for several owners: the number that each has taken, and whether it waits.
type accounts struct {
	names map[string]*account
	// sweepAt is the number of accounts at which unused ones are dropped next.
	sweepAt int
}

type account struct {
	share *rate.Limiter
	// waits is the time until which the owner counts as waiting. If it still waits, it calls May again before that.
	waits time.Time
	pods  accounts
}

// NewBucket makes a full bucket. each is the share of one namespace.
func NewBucket(all, each Pace) *Bucket {
	return &Bucket{all: rate.NewLimiter(all.limit(), all.AtOnce), each: each, namespaces: newAccounts()}
}

// Set changes the paces, and keeps the numbers taken.
func (b *Bucket) Set(all, each Pace, now time.Time) {
	adjust(b.all, all, now)
	if b.each == each {
		return
	}
	b.each = each
	for _, a := range b.namespaces.names {
		adjust(a.share, each, now)
		for _, p := range a.pods.names {
			adjust(p.share, each.Quarter(), now)
		}
	}
}

// adjust gives a limiter a pace.
func adjust(l *rate.Limiter, p Pace, now time.Time) {
	if l.Limit() != p.limit() {
		l.SetLimitAt(now, p.limit())
	}
	if l.Burst() != p.AtOnce {
		l.SetBurstAt(now, p.AtOnce)
	}
}

// Answer reports whether an owner may take from a Bucket.
type Answer struct {
	// OK is set if it may. Otherwise the answer does not change before Until.
	OK    bool
	Until time.Time
	// Yields is set if the Bucket is not empty, and other owners have a better right.
	Yields bool
}

// May reports whether an owner may take one. It has no effect.
func (b *Bucket) May(o Owner, now time.Time) Answer {
	a := b.namespaces.of(o.Namespace, b.each)
	needed := 1
	if a.share.TokensAt(now) < 1 {
		needed += b.all.Burst() / perKept
	}
	if b.all.TokensAt(now) < float64(needed) {
		return Answer{Until: comesBack(b.all, needed, now), Yields: b.all.TokensAt(now) >= 1}
	}
	if b.namespaces.yields(o.Namespace, a, now) {
		return Answer{Until: comesBack(a.share, 1, now), Yields: true}
	}
	if p := a.pods.of(o.Pod, b.each.Quarter()); a.pods.yields(o.Pod, p, now) {
		return Answer{Until: comesBack(p.share, 1, now), Yields: true}
	}
	return Answer{OK: true}
}

// Wait notes that an owner has asked and waits, as long as it asks again within this time.
func (b *Bucket) Wait(o Owner, now time.Time, within time.Duration) {
	a := b.namespaces.keepAccount(o.Namespace, b.each, now)
	a.waits = now.Add(within)
	a.pods.keepAccount(o.Pod, b.each.Quarter(), now).waits = a.waits
}

// Take takes one. An owner that waited waits no more.
func (b *Bucket) Take(o Owner, now time.Time) {
	a := b.namespaces.keepAccount(o.Namespace, b.each, now)
	p := a.pods.keepAccount(o.Pod, b.each.Quarter(), now)
	for _, l := range []*rate.Limiter{b.all, a.share, p.share} {
		l.AllowN(now, 1)
	}
	a.waits, p.waits = time.Time{}, time.Time{}
}

func newAccounts() accounts { return accounts{names: map[string]*account{}, sweepAt: minSweep} }

// minSweep is the least number of accounts at which some are dropped.
const minSweep = 64

// of returns the account of an owner. An owner without an account has a full share.
func (s *accounts) of(name string, share Pace) *account {
	if a := s.names[name]; a != nil {
		return a
	}
	return &account{share: rate.NewLimiter(share.limit(), share.AtOnce), pods: newAccounts()}
}

// keepAccount returns the account of an owner, and keeps it. When their number has doubled, it drops accounts with a full share whose
// owners do not wait.
func (s *accounts) keepAccount(name string, share Pace, now time.Time) *account {
	a := s.of(name, share)
	if s.names[name] != nil {
		return a
	}
	if len(s.names) >= s.sweepAt {
		maps.DeleteFunc(s.names, func(_ string, a *account) bool {
			return a.share.TokensAt(now) >= float64(a.share.Burst()) && !a.waits.After(now)
		})
		s.sweepAt = max(minSweep, 2*len(s.names))
	}
	s.names[name] = a
	return a
}

// yields reports whether an owner has used up its share while another waits that has not.
func (s *accounts) yields(name string, a *account, now time.Time) bool {
	if a.share.TokensAt(now) >= 1 {
		return false
	}
	for other, b := range s.names {
		if other != name && b.waits.After(now) && b.share.TokensAt(now) >= 1 {
			return true
		}
	}
	return false
}

// comesBack returns when a limiter has so many tokens.
func comesBack(l *rate.Limiter, tokens int, now time.Time) time.Time {
	seconds := max(0, float64(tokens)-l.TokensAt(now)) / float64(l.Limit())
	return now.Add(time.Duration(math.Ceil(seconds*1000-1e-6)) * time.Millisecond)
}
