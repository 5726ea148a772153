// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package share divides finite things: places, turns, and budgets that come back with time. It divides among namespaces
// first, and the part of a namespace among its pods. A place is always kept for an owner who has none.
//
// All bounded things that several tenants use are divided here: a Room has places, Turns are a queue, a Bucket is a
// budget. It knows no finding and no action, reads no clock, and imports the standard library and the rate limiter alone. Its
// types have no lock: the user has one.
package share

import "cmp"

// Owner is the pod for which something is taken. Without a pod it is the whole namespace, and without a namespace the node or the
// cluster itself.
type Owner struct{ Namespace, Pod string }

// Divisors of the places that are left.
const (
	// perNamespace: one namespace may have a quarter of the places.
	perNamespace = 4
	// perPod: one pod may have half of the places of its namespace.
	perPod = 2
)

// Part is a part of a number, such as an eighth for 8, and at least 1.
func Part(n, of int) int { return max(1, n/of) }

// Quarter is a quarter of a number, at least 1: the share of one namespace.
func Quarter(n int) int { return Part(n, perNamespace) }

// Room has places, and counts who has them. A namespace may have a quarter of the places that others leave, and at least one, also
// if all are taken. So no namespace takes all of them, and each gets one. A pod may have half of those of its
// namespace. The node or the cluster itself is bounded by the number of places alone. The zero value has no place.
type Room struct {
	// Places is the number of places. There may be one more for each namespace.
	Places int
	// PerNamespace is the divisor of the places left for the share of one namespace: 8 is an eighth. 0: a quarter.
	PerNamespace int

	taken   int
	holders map[string]*holder // by namespace
}

// holder counts the places of a namespace, and of each of its pods.
type holder struct {
	taken int
	pods  map[string]int
}

// Taken returns the number of taken places.
func (r *Room) Taken() int { return r.taken }

// May reports whether an owner may have one more place.
func (r *Room) May(o Owner) bool {
	left := r.Places - r.taken
	if o.Namespace == "" {
		return left > 0
	}
	h := r.holders[o.Namespace]
	if h == nil {
		return true
	}
	share := Part(left, cmp.Or(r.PerNamespace, perNamespace))
	return h.taken < share && (o.Pod == "" || h.pods[o.Pod] < Part(share-h.taken, perPod))
}

// Take takes a place, and reports whether the owner may have it.
func (r *Room) Take(o Owner) bool {
	if !r.May(o) {
		return false
	}
	r.Add(o)
	return true
}

// Add counts a place that an owner has already, whether it may or not.
func (r *Room) Add(o Owner) {
	if r.holders == nil {
		r.holders = map[string]*holder{}
	}
	h := r.holders[o.Namespace]
	if h == nil {
		h = &holder{pods: map[string]int{}}
		r.holders[o.Namespace] = h
	}
	r.taken++
	h.taken++
	h.pods[o.Pod]++
}

// Free gives a place back that the owner has taken.
func (r *Room) Free(o Owner) {
	h := r.holders[o.Namespace]
	if h == nil || h.pods[o.Pod] == 0 {
		return
	}
	r.taken--
	if h.pods[o.Pod]--; h.pods[o.Pod] == 0 {
		delete(h.pods, o.Pod)
	}
	if h.taken--; h.taken == 0 {
		delete(r.holders, o.Namespace)
	}
}

// Several reports whether a number is reached by several namespaces together: by all of them, and half of it also without the
// namespace that has the most. So one namespace, together with a little of another, does not pay for all. counts has the number of
// each namespace; the number of no namespace is never left out.
func Several(counts map[string]int, needed int) bool {
	all, most := 0, 0
	for namespace, n := range counts {
		all += n
		if namespace != "" {
			most = max(most, n)
		}
	}
	return all >= needed && all-most >= (needed+1)/2
}
