// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"testing"
)

// TestAddedFaultHasItsOwnAdvice: advice on a code comes from its entry alone. Neighbours and the place change nothing.
func TestAddedFaultHasItsOwnAdvice(t *testing.T) {
	t.Parallel()
	example := Entry{
		Code: "AddedFault", Symptom: Symptom{Impact: always(ImpactCleanup), Fact: always("it is an example")}, NoPlan: "nothing: an example", Next: "read on",
		Ways: map[ActionKind]Way{Detach: {always("it can"), always("detach the example")}},
		At:   map[Place]Remedy{PlaceDevice: {NewPod: true, Commands: remedyLines{showErrors}}},
	}
	known := append(slices.Clone(Known()), example)
	for _, place := range append(Places(), PlaceUnknown) {
		f := Finding{Code: "AddedFault", Pod: Pod{Namespace: "n", Name: "p"}, Mount: Mount{FSType: "fuse", Device: "0:9", Point: "/p"}}
		f.Details = Details{Place: place, PodState: PodWanted, Workload: Workload{"StatefulSet", "web"}, Daemon: &Process{PID: 7}, HeldBy: &Process{PID: 8}}
		a, at := known.Advise(f, Caller{}), place == PlaceDevice
		if a.Impact != ImpactCleanup || a.Summary != "it is an example" || a.Plan != "nothing: an example" || (len(a.Commands) == 1) != at {
			t.Errorf("at %q: %+v", place, a)
		}
		if helps := known.EvictionHelps(f); helps != at {
			t.Errorf("at %q: an eviction helps: %v", place, helps)
		}
		f.Details.Repair = Detach
		if a := known.Advise(f, Caller{}); a.Summary != "it is an example; it can" || a.Plan != "detach the example" {
			t.Errorf("at %q, repaired: %+v", place, a)
		}
	}
	if a := Known().Advise(Finding{Code: "AddedFault"}, Caller{}); a.Heal != HealPerson || len(a.Commands) > 0 || Known().EvictionHelps(Finding{Code: "AddedFault"}) {
		t.Errorf("a code that the catalogue does not have: %+v", a)
	}
}
