// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/test/ceph/states"
)

// named is the state of that name.
func named(t *testing.T, name string) states.State {
	t.Helper()
	i := slices.IndexFunc(states.All(), func(s states.State) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no state %q", name)
	}
	return states.All()[i]
}

// TestAbort ends the connection of a ceph-fuse that hangs, which has to be asked for: the volume is as if the daemon
// had died then, and is repaired once the driver has come.
func TestAbort(t *testing.T) {
	hung, dead := named(t, "H"), named(t, "Z")
	s := newScene(t, hung)
	hung.Build(t, s.place)
	if refusals := s.refuse(hung); !strings.Contains(refusals[0], "must be requested") {
		t.Errorf("refusals %q", refusals)
	}
	before := s.place.Line(t)
	actions, refusals, err := s.judge.Plan(t.Context(), s.inspect(), volume.PlanOptions{Abort: true})
	if err != nil || len(actions) != 1 || len(refusals) != 2 {
		t.Fatalf("actions %+v, refusals %q, %v, want one step, and that neither the volume nor the container has anything to take its place", actions, refusals, err)
	}
	step := actions[0]
	if step.Kind != fault.Abort || step.Key().Code != fault.HungMount || step.Lossless || !strings.HasPrefix(step.Loss, "data in flight: ") {
		t.Errorf("step %+v", step)
	}
	for _, want := range []string{"aborted FUSE connection", "was aborted already"} {
		if done, err := s.judge.Open()(t.Context(), step); err != nil || !strings.Contains(done.Message, want) {
			t.Fatalf("apply: %+v, %v, want %q", done, err, want)
		}
	}
	if proof, err := s.judge.Verify(t.Context(), actions); err != nil || !proof.Healed {
		t.Errorf("proof %+v, %v", proof, err)
	}
	if _, err := os.Stat(s.place.Target); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("the mount answers %v, want ENOTCONN", err)
	}
	v := s.inspect()
	if diff := cmp.Diff(wanted(dead), verdict{v.Evidence.Answer.State, v.Evidence.Answer.Bindable, v.Evidence.Answer.Deleted}); diff != "" || v.Verdict.Code != dead.Code {
		t.Errorf("%s, answer (-want +got):\n%s", v.Verdict.Code, diff)
	}
	if after := s.place.Line(t); after != before {
		t.Errorf("the mount's line has changed from %q to %q", before, after)
	}
	s.container.await(t, "that its volume is dead", func(seen string) bool { return strings.Contains(seen, "not connected") })
	s.place.Restage(t)
	s.heal(fault.DisconnectedFUSE)
}
