// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package recoverypolicy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/policy"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func number(n int32) *int32 { return &n }

// on makes a count of nodes of a pool that have a fault in one namespace. The policy selects this pool alone.
func on(nodes, size int) *counted {
	return (&counted{nodes: map[string]map[string]bool{}, size: size, alone: size <= 1}).in("shop", 0, nodes)
}

// in adds nodes, from one on, that have the fault in a namespace.
func (c *counted) in(namespace string, from, nodes int) *counted {
	c.nodes[namespace] = map[string]bool{}
	for i := range nodes {
		c.nodes[namespace][fmt.Sprint(from+i)] = true
	}
	return c
}

// forAll makes it the count of all namespaces.
func (c *counted) forAll() *counted {
	c.several = true
	return c
}

// withFailures adds failed repairs of faults, each on another node.
func (c *counted) withFailures(at time.Time, repairs ...int32) *counted {
	return c.failedIn("shop", at, repairs...)
}

func (c *counted) failedIn(namespace string, at time.Time, repairs ...int32) *counted {
	for i, n := range repairs {
		c.failed = append(c.failed, failed{namespace, fmt.Sprint("node-", i), n, at})
	}
	return c
}

func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	row, once := &v1.RecoveryBreaker{FailedRepairs: number(3)}, &v1.RecoveryBreaker{FailedRepairs: number(1)}
	share := &v1.RecoveryBreaker{MaximumNodesPercent: number(25)}
	for name, tc := range map[string]struct {
		spec  *v1.RecoveryBreaker
		count *counted
		want  string // the reason; empty: it stays closed
	}{
		"no failure":            {row, on(10, 10), ""},
		"two failures":          {row, on(1, 10).withFailures(noon, 2), ""},
		"three of one node":     {row, on(1, 1).withFailures(noon, 3), v1.ReasonFailedRepairs},
		"one node of ten":       {row, on(1, 10).withFailures(noon, 1000), ""},
		"two nodes of ten":      {row, on(2, 10).withFailures(noon, 1000, 1), v1.ReasonFailedRepairs},
		"one is enough":         {once, on(1, 1).withFailures(noon, 1), v1.ReasonFailedRepairs},
		"one of one node":       {once, on(1, 10).withFailures(noon, 9), ""},
		"one of two nodes":      {once, on(2, 10).withFailures(noon, 1, 1), v1.ReasonFailedRepairs},
		"one namespace of all":  {row, on(3, 10).withFailures(noon, 2, 2, 2).forAll(), ""},
		"a little of another":   {row, on(3, 10).withFailures(noon, 2, 2, 2).failedIn("tenant", noon, 1).forAll(), ""},
		"two namespaces":        {row, on(3, 10).withFailures(noon, 2, 2, 2).failedIn("tenant", noon, 1, 1).forAll(), v1.ReasonFailedRepairs},
		"three namespaces":      {row, on(3, 10).withFailures(noon, 1).failedIn("a", noon, 0, 1).failedIn("b", noon, 0, 0, 1).forAll(), v1.ReasonFailedRepairs},
		"of no namespace":       {row, on(0, 10).failedIn("", noon, 2, 2).forAll(), v1.ReasonFailedRepairs},
		"nodes of one for all":  {share, on(9, 10).forAll(), ""},
		"and one of another":    {share, on(9, 10).in("tenant", 9, 1).forAll(), ""},
		"nodes of two":          {share, on(3, 10).in("tenant", 3, 2).forAll(), v1.ReasonTooManyNodes},
		"nodes of no namespace": {share, on(0, 10).in("", 0, 3).forAll(), v1.ReasonTooManyNodes},
		"three of three":        {row, on(3, 10).withFailures(noon, 1, 1, 1), v1.ReasonFailedRepairs},
		"a share":               {share, on(3, 11), v1.ReasonTooManyNodes},
		"exactly the share":     {share, on(3, 12), ""},
		"too few for a share":   {share, on(2, 2), ""},
		"one node is enough":    {&v1.RecoveryBreaker{MaximumNodesPercent: number(50), MinimumFaultyNodes: number(1)}, on(1, 1), v1.ReasonTooManyNodes},
		"nodes are not counted": {row, on(100, 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &v1.RecoveryPolicy{Spec: v1.RecoveryPolicySpec{Breaker: tc.spec}}
			all, changes := decide(p, map[breakerKey]*counted{{code: "StaleSubPath", pool: "a"}: tc.count}, noon.Add(time.Second))
			if tc.want == "" {
				if len(all)+len(changes) > 0 {
					t.Errorf("%+v", all)
				}
				return
			}
			if len(all) != 1 || len(changes) != 1 || all[0].State != v1.BreakerOpen || all[0].Reason != tc.want || all[0].Message == "" || all[0].Pool != "a" {
				t.Errorf("%+v, %+v", all, changes)
			}
		})
	}
}

// TestBreakerAddsUpMountFaults: each MountFault has the failed repairs of its own volume alone, so the sum is that of the agent.
func TestBreakerAddsUpMountFaults(t *testing.T) {
	t.Parallel()
	for failures, open := range map[[3]int32]bool{{1, 0, 0}: false, {1, 1, 0}: false, {1, 1, 1}: true, {3, 0, 0}: true} {
		p := breaking(v1.RecoveryBreaker{FailedRepairs: number(3)})
		e := &pass{policy: policy.Compile(p, fault.Known())}
		for _, n := range failures {
			e.faults = append(e.faults, *faultIn("shop", "n1", n, noon))
		}
		counts, err := newCluster(t, 1).r.count(t.Context(), e)
		must(t, err)
		if all, _ := decide(p, counts, noon.Add(time.Second)); (len(all) == 1) != open {
			t.Errorf("failures %v: breakers %+v, want one that is open: %t", failures, all, open)
		}
	}
}

// TestBreakerCloses goes through the life of a breaker.
func TestBreakerCloses(t *testing.T) {
	t.Parallel()
	p := &v1.RecoveryPolicy{Spec: v1.RecoveryPolicySpec{Breaker: &v1.RecoveryBreaker{FailedRepairs: number(3)}}}
	now := noon
	step := func(want v1.BreakerState, changed bool, count *counted) {
		t.Helper()
		var changes []change
		p.Status.Breakers, changes = decide(p, map[breakerKey]*counted{{code: "StaleSubPath"}: count}, now)
		if len(p.Status.Breakers) != 1 || p.Status.Breakers[0].State != want || (len(changes) > 0) != changed {
			t.Fatalf("%+v, changes %+v, want %s", p.Status.Breakers, changes, want)
		}
	}
	set := func(at time.Time) { p.Spec.Breaker.ResetTime = &metav1.Time{Time: at} }
	failing := on(2, 10).withFailures(noon.Add(-time.Second), 2, 1)
	step(v1.BreakerOpen, true, failing)
	now = now.Add(24 * time.Hour)
	step(v1.BreakerOpen, false, failing)  // a person has to close it
	step(v1.BreakerOpen, false, on(0, 1)) // also if the faults are gone
	set(noon.Add(-time.Minute))
	step(v1.BreakerOpen, false, failing) // of an earlier time
	set(now.Add(time.Hour))
	step(v1.BreakerOpen, false, failing) // of the future
	set(now)
	step(v1.BreakerClosed, true, failing)
	now = now.Add(time.Minute)
	step(v1.BreakerClosed, false, failing) // the old failures do not count
	step(v1.BreakerOpen, true, on(2, 10).withFailures(now, 2, 1))
	p.Spec.Breaker.ResetTime, p.Spec.Breaker.ResetAfterSeconds = nil, number(60)
	now = now.Add(59 * time.Second)
	step(v1.BreakerOpen, false, failing)
	now = now.Add(time.Second)
	step(v1.BreakerClosed, true, failing)
}

// TestShareAfterAReset: after a person has closed the breaker, repairs go on although as many nodes have the fault, and stop if
// there are more.
func TestShareAfterAReset(t *testing.T) {
	t.Parallel()
	spec := &v1.RecoveryBreaker{MaximumNodesPercent: number(10)}
	b := &v1.BreakerStatus{State: v1.BreakerOpen, OpenedTime: &metav1.Time{Time: noon}}
	spec.ResetTime = &metav1.Time{Time: noon}
	for i, tc := range []struct {
		nodes int
		want  v1.BreakerState
	}{
		{5, v1.BreakerClosed}, {5, v1.BreakerClosed}, {4, v1.BreakerClosed}, {1, v1.BreakerClosed}, {5, v1.BreakerOpen}, {5, v1.BreakerOpen},
	} {
		if step(b, spec, on(tc.nodes, 10), noon.Add(time.Duration(i+1)*time.Minute)); b.State != tc.want {
			t.Fatalf("step %d: %+v", i, b)
		}
	}
}

// TestBreakerOfClockAhead: the clock of the manager was a year ahead when the breaker changed.
func TestBreakerOfClockAhead(t *testing.T) {
	t.Parallel()
	ahead, later := metav1.NewTime(noon.AddDate(1, 0, 0)), noon.Add(time.Minute)
	spec := &v1.RecoveryBreaker{FailedRepairs: number(3)}
	open := &v1.BreakerStatus{State: v1.BreakerOpen, OpenedTime: &ahead}
	if made := step(open, spec, on(0, 10), noon); made != nil || !open.OpenedTime.Time.Equal(noon) {
		t.Errorf("%+v", open)
	}
	spec.ResetTime = &metav1.Time{Time: later}
	if made := step(open, spec, on(0, 10), later); made == nil || open.State != v1.BreakerClosed {
		t.Errorf("a person cannot close it: %+v", open)
	}
	closed := &v1.BreakerStatus{State: v1.BreakerClosed, ClosedTime: &ahead}
	if made := step(closed, spec, on(0, 10), noon); made != nil || !closed.ClosedTime.Time.Equal(noon) {
		t.Errorf("%+v", closed)
	}
	if made := step(closed, spec, on(2, 10).withFailures(later, 2, 1), later); made == nil || closed.State != v1.BreakerOpen {
		t.Errorf("failed repairs do not open it: %+v", closed)
	}
}

func TestMessagesAreShort(t *testing.T) {
	t.Parallel()
	b := &v1.BreakerStatus{}
	step(b, &v1.RecoveryBreaker{MaximumNodesPercent: number(1)}, on(5000, 5000), noon)
	if len(b.Message) > 100 || !strings.Contains(b.Message, "5000 of 5000") {
		t.Errorf("%q", b.Message)
	}
}
