// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountfault

import (
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
)

// TestOlderAPI does not know the impact Terminating: the object gets Cleanup, with one refusal for all, and again once the
// CustomResourceDefinition is the agent's.
func TestOlderAPI(t *testing.T) {
	run(t, func(t *testing.T, n *testNode) {
		n.older = true
		one, two := dead(n.pod("one"), ""), dead(n.pod("two"), "")
		one.Details.KeepsPod, two.Details.KeepsPod = true, true
		n.set(one)
		n.expect(t, "list 0s", "create DisconnectedFUSE 0s", "create DisconnectedFUSE 0s")
		n.set(one, two)
		n.expect(t, "create DisconnectedFUSE 0s")
		for name, f := range n.objects(t) {
			if f.Status.Impact != v1.ImpactCleanup {
				t.Errorf("%s has impact %s", name, f.Status.Impact)
			}
		}
		n.mu.Lock()
		n.older = false
		n.mu.Unlock()
		time.Sleep(repeatInterval + Interval)
		n.set(one, two)
		time.Sleep(Interval)
		for name, f := range n.objects(t) {
			if f.Status.Impact != v1.ImpactTerminating {
				t.Errorf("%s has impact %s after the list", name, f.Status.Impact)
			}
		}
	})
}
