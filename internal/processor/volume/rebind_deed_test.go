// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/processor/restart"
)

// TestClaimsNoDeedOfOthers: a mount that had gone, or that another process repaired, is not said to have been replaced.
func TestClaimsNoDeedOfOthers(t *testing.T) {
	t.Parallel()
	w := newRebindWorld()
	a := w.breakVolume("pvc-a")
	abort := a
	abort.Kind = fault.Abort
	w.plans["pvc-a"] = plannedRepair{actions: []fault.Action{abort, a, inContainer(a, "app", "/data")}}
	p := throughJournal(t, w.planRepair(t))
	p.Applied = []fault.Applied{fault.AlreadySo("was aborted already"), {}, fault.AlreadySo("its mount namespace has gone")}
	w.proof.Evidence = []string{"is alive", "mount namespace mnt:[43] has gone"}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, p)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal([]byte(result.Values[keyRebindResults]), &got); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`did not abort the connection of "/p/pvc-a": was aborted already`,
		`replaced the mount at "/p/pvc-a", which was broken by DisconnectedFUSE: is alive`,
		`found nothing left to replace of the mount at "/data" of container "app", which was broken by DisconnectedFUSE: ` +
			`mount namespace mnt:[43] has gone`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
}

// TestSuffers: the mount on the host is any container's, and that of a container its own.
func TestSuffers(t *testing.T) {
	t.Parallel()
	m := rebindState{Pending: restart.Pending{Containers: []restart.PendingContainer{{Container: "app"}}}}
	for container, want := range map[string]bool{"": true, "app": true, "sidecar": false} {
		if got := m.NeedsMountOf(fault.Finding{Container: container}); got != want {
			t.Errorf("container %q: %v, want %v", container, got, want)
		}
	}
}
