// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
)

// changed has the fields that a program reads of a recovery or a release.
type changed struct {
	Faults, Healed int
	Repairs        []struct {
		changedOne
		Faults []struct{ Code fault.Code }
	}
	changedOne
	Next          string
	Before, After *struct{ Device struct{ State string } }
}

type changedOne struct {
	Result  string
	Actions []struct{ Kind, Phase, Loss string }
}

// json reads the output of a command with -o json, and fails the test if the command has not ended with the status.
func (r *result) json(t *testing.T, status int) (c changed) {
	t.Helper()
	r.read(t, &c)
	r.says(t, status)
	return c
}

// TestRecoverAsJSON asks nothing: it writes the plan, or the result.
func TestRecoverAsJSON(t *testing.T) {
	w := newBrokenNode(t)
	codes := func(c changed, result, phase string) (all []fault.Code) {
		for _, one := range c.Repairs {
			if one.Result != result || len(one.Actions) == 0 || one.Actions[0].Phase != phase || !strings.HasPrefix(one.Actions[0].Loss, "nothing") {
				t.Errorf("repair %+v, want %s", one, result)
			}
			for _, f := range one.Faults {
				all = append(all, f.Code)
			}
		}
		slices.Sort(all)
		return all
	}
	want := []fault.Code{fault.DisconnectedFUSE, fault.HeldDevice, fault.StaleSubPath}
	for status, args := range map[int][]string{1: {"--dry-run"}, 3: nil} {
		r := w.unchanged(t, func() *result { return w.recover(t, append(args, "-o", "json")...) })
		c := r.json(t, status)
		if diff := cmp.Diff(want, codes(c, "Planned", "Planned")); diff != "" || c.Faults != 3 || c.Healed != 0 || !strings.Contains(c.Next, " recover --yes ") {
			t.Errorf("planned (-want +got):\n%s%s", diff, r)
		}
		if status == 3 && !strings.HasSuffix(strings.TrimSpace(r.errors), "To carry out the plan, type: "+c.Next) {
			t.Errorf("next %q, error %s", c.Next, r.errors)
		}
	}
	planned := w.recover(t, "-o", "json").json(t, 3)
	done := (&result{out: w.paste(t, planned.Next)}).json(t, 0)
	if diff := cmp.Diff(want, codes(done, "Healed", "Done")); diff != "" || done.Healed != 3 || done.Next != "" {
		t.Errorf("healed (-want +got):\n%s%+v", diff, done)
	}
	w.clean(t)
	if c := w.recover(t, "--yes", "-o", "json").json(t, 0); c.Faults != 0 || len(c.Repairs) != 0 {
		t.Errorf("once more: %+v", c)
	}
}

// TestReleaseAsJSON asks nothing, as recover does.
func TestReleaseAsJSON(t *testing.T) {
	w := newBrokenNode(t)
	release := func(args ...string) *result {
		return w.run(t, "release", append([]string{"--data-root=" + w.data, "-o", "json"}, args...)...)
	}
	w.unchanged(t, func() *result { return release("--dry-run", w.s.device) }).json(t, 1)
	planned := w.unchanged(t, func() *result { return release(w.s.device) }).json(t, 3)
	if planned.Result != "Planned" || len(planned.Actions) == 0 || planned.Before.Device.State != "held" || planned.After != nil {
		t.Errorf("planned: %+v", planned)
	}
	done := (&result{out: w.paste(t, planned.Next)}).json(t, 0)
	if done.Result != "Healed" || done.Actions[0].Phase != "Done" || done.After == nil || done.After.Device.State != "free" || done.Next != "" {
		t.Errorf("done: %+v", done)
	}
	if c := release("--yes", w.s.device).json(t, 0); c.Result != "Gone" || c.Before.Device.State != "free" {
		t.Errorf("once more: %+v", c)
	}
	if c := release("--yes", "/").json(t, 3); c.Result != "Refused" || c.Before.Device.State != "inUse" {
		t.Errorf("the root: %+v", c)
	}
}
