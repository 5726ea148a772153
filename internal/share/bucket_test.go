// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// takes takes as much as an owner may have now, up to tries.
func (b *Bucket) takes(o Owner, now time.Time, tries int) (n int) {
	for range tries {
		if !b.May(o, now).OK {
			b.Wait(o, now, time.Minute)
			return n
		}
		b.Take(o, now)
		n++
	}
	return n
}

func TestBucketKeepsAPart(t *testing.T) {
	t.Parallel()
	for atOnce, alone := range map[int]int{1: 1, 5: 5, 7: 7, 8: 7, 20: 18, 100: 88} {
		all := Pace{atOnce, 60}
		b := NewBucket(all, all.Quarter())
		if n := b.takes(Owner{"tenant", "a"}, noon, 1000); n != alone {
			t.Errorf("%d of %d for one namespace", n, atOnce)
		}
		if n := b.takes(Owner{"shop", "a"}, noon, 1000); n != atOnce-alone {
			t.Errorf("%d of %d are left for another", n, atOnce)
		}
	}
}

// TestBucketWhileOthersWait: the namespace that has used up its share yields to another that has not, for as long as that waits.
func TestBucketWhileOthersWait(t *testing.T) {
	t.Parallel()
	b := NewBucket(Pace{4, 60}, Pace{1, 6})
	tenant, shop, now := Owner{"tenant", "a"}, Owner{"shop", "b"}, noon
	b.takes(tenant, now, 9)
	b.takes(shop, now, 1) // waits
	now = now.Add(30 * time.Second)
	b.Wait(shop, now, time.Minute)
	now = now.Add(30 * time.Second)
	if answer := b.May(tenant, now); answer.OK || !answer.Yields || !answer.Until.After(now) {
		t.Errorf("the tenant has a turn that is another's: %+v", answer)
	}
	if n := b.takes(shop, now, 1); n != 1 {
		t.Error("it is no turn of shop either")
	}
	now = now.Add(2 * time.Minute)
	if n := b.takes(tenant, now, 9); n != 2 {
		t.Errorf("%d for the tenant while no other waits", n)
	}
}

// TestPodsShareABucket as namespaces do.
func TestPodsShareABucket(t *testing.T) {
	t.Parallel()
	b := NewBucket(Pace{4, 60}, Pace{4, 60})
	b.takes(Owner{"shop", "a"}, noon, 9)
	b.takes(Owner{"shop", "b"}, noon, 1)
	now := noon.Add(time.Minute)
	b.Wait(Owner{"shop", "b"}, now, time.Minute)
	if b.May(Owner{"shop", "a"}, now).OK || !b.May(Owner{"shop", "b"}, now).OK {
		t.Error("it is not the turn of b")
	}
}

// TestBucketForgets: owners in whose accounts nothing is noted take no memory, and a change of the pace keeps what was taken.
func TestBucketForgets(t *testing.T) {
	t.Parallel()
	b, now := NewBucket(Pace{100, 360000}, Pace{10, 36000}), noon
	for i := range 10_000 {
		now = now.Add(10 * time.Millisecond)
		b.takes(Owner{fmt.Sprint("namespace-", i), "a"}, now, 1)
		pod := Owner{"shop", fmt.Sprint("pod-", i)}
		if b.May(pod, now).OK {
			b.Take(pod, now)
		} else {
			b.Wait(pod, now, time.Second)
		}
	}
	if namespaces, pods := len(b.namespaces.names), len(b.namespaces.names["shop"].pods.names); namespaces > 1000 || pods > 1000 {
		t.Errorf("%d namespaces and %d pods are known", namespaces, pods)
	}
	full := NewBucket(Pace{4, 60}, Pace{4, 60})
	full.takes(Owner{"shop", "a"}, noon, 4)
	full.Set(Pace{8, 60}, Pace{2, 15}, noon)
	if full.May(Owner{"shop", "a"}, noon).OK {
		t.Error("a change of the pace has filled the bucket")
	}
}
