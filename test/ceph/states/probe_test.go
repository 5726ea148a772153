// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/test/ceph/states"
)

// verdict is what of an answer the table speaks of.
type verdict struct {
	State    probe.State
	Bindable probe.Tristate
	Deleted  bool
}

func wanted(s states.State) verdict {
	v := verdict{State: probe.Alive, Bindable: probe.No, Deleted: s.Deleted}
	if s.Bindable {
		v.Bindable = probe.Yes
	}
	switch s.Life {
	case states.Alive:
	case states.Dead:
		v.State = probe.Disconnected
	case states.Hung:
		v.State, v.Bindable = probe.Hung, probe.Unknown
	}
	return v
}

func TestProbeNamesEachStateAndChangesNone(t *testing.T) {
	p := &probe.Prober{}
	each(t, func(t *testing.T, s states.State, place *states.Place) {
		p.Deadline = patience(s)
		before := place.Line(t)
		for range 2 {
			answers, err := p.Ask(t.Context(), []probe.Target{{Point: place.Target, Bind: true}})
			if err != nil || len(answers) != 1 {
				t.Fatalf("%d answers, %v", len(answers), err)
			}
			a := answers[0]
			if diff := cmp.Diff(wanted(s), verdict{a.State, a.Bindable, a.Deleted}); diff != "" {
				t.Errorf("answer (-want +got):\n%s%q, %+v", diff, a.Evidence, a.Stat)
			}
			if after := place.Line(t); after != before {
				t.Errorf("asking has changed %q to %q", before, after)
			}
		}
	})
}
