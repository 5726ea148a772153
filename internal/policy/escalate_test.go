// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// escalating is a policy that escalates after so many seconds, 0: not.
func escalating(name string, evict, cordon int32, pods *int32) *Policy {
	return named(name, v1.RecoveryAutomatic, func(p *v1.RecoveryPolicy) {
		p.Spec.Escalation = &v1.RecoveryEscalation{}
		if evict > 0 {
			p.Spec.Escalation.Evict = &v1.EvictEscalation{AfterSeconds: evict}
		}
		if cordon > 0 {
			p.Spec.Escalation.Cordon = &v1.CordonEscalation{AfterSeconds: cordon, MinimumPods: pods}
		}
	})
}

// TestMostCarefulEscalation: all policies that select a fault want it, and the greatest of their bounds holds.
func TestMostCarefulEscalation(t *testing.T) {
	t.Parallel()
	five := int32(5)
	none := named("none", v1.RecoveryAutomatic, nil)
	for name, tc := range map[string]struct {
		policies []*Policy
		evict    time.Duration // 0: not
		by       string
		cordon   Cordon // no time: not
	}{
		"no policy":    {},
		"both":         {policies: []*Policy{escalating("a", 60, 120, nil)}, evict: time.Minute, cordon: Cordon{2 * time.Minute, 3}},
		"the greatest": {policies: []*Policy{escalating("a", 60, 300, nil), escalating("b", 120, 120, &five)}, evict: 2 * time.Minute, cordon: Cordon{5 * time.Minute, 5}},
		"one does not": {policies: []*Policy{escalating("a", 60, 60, nil), none}, by: "none"},
		"one in part":  {policies: []*Policy{escalating("a", 60, 60, nil), escalating("b", 60, 0, nil)}, evict: time.Minute},
		"of the other": {policies: []*Policy{escalating("a", 60, 60, nil), escalating("b", 0, 60, nil)}, by: "b", cordon: Cordon{time.Minute, 3}},
		"an empty one": {policies: []*Policy{escalating("a", 0, 0, nil)}, by: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, ok, by := EvictAfter(tc.policies)
			if after != tc.evict || ok != (tc.evict > 0) || by != tc.by {
				t.Errorf("evict after %s, %t, by %q", after, ok, by)
			}
			if c, ok := CordonOf(tc.policies); c != tc.cordon || ok != (tc.cordon.After > 0) {
				t.Errorf("cordon %+v, %t", c, ok)
			}
		})
	}
}
