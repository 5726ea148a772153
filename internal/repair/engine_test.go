// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
	"kubediag.org/kubediag/internal/repair/repairtest"
)

// remover is a family that removes things from a set, by the targets of its actions. It notes its actions.
type remover struct {
	there  map[string]bool
	fails  map[string]error
	opened int // series of actions

	mu  sync.Mutex
	did []string
}

func (*remover) Name() string { return "remover" }

func (*remover) Plan(context.Context, processor.Request) (repair.Part, error) {
	return repair.Part{}, errors.New("is not asked")
}

func (f *remover) Open() repair.Apply {
	f.opened++
	return func(_ context.Context, _ processor.Request, a fault.Action) (fault.Applied, error) {
		if err := f.fails[a.Target]; err != nil {
			return fault.Applied{}, err
		}
		if !f.there[a.Target] {
			return fault.AlreadySo("was gone already"), nil
		}
		delete(f.there, a.Target)
		f.did = append(f.did, "remove "+a.Target)
		return fault.Applied{Message: "removed"}, nil
	}
}

func (f *remover) Verify(_ context.Context, _ processor.Request, p repair.Part) (processor.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, "verify "+p.Actions[0].Target)
	return processor.Result{Findings: processor.MarkHealed(p.Findings, nil), Values: map[string]string{"result": p.Actions[0].Target}}, nil
}

// newRemoval is a family and a plan with a part for each list of targets.
func newRemoval(parts ...string) (*remover, repair.Plan) {
	f, plan := &remover{there: map[string]bool{}}, repair.Plan{Message: "said before", Values: map[string]string{"known": "before"}}
	for _, targets := range parts {
		part := repair.Part{Family: f.Name()}
		for _, target := range strings.Fields(targets) {
			f.there[target] = true
			part.Actions = append(part.Actions, fault.Action{Kind: fault.RemoveFile, Target: target})
			part.Findings = append(part.Findings, fault.Finding{Volume: target})
		}
		plan.Parts = append(plan.Parts, part)
	}
	return f, plan
}

// gate notes its calls; holds are the targets that it holds.
type gate struct {
	holds map[string]string
	err   error
	asked []string
}

func (g *gate) Check(_ context.Context, _ processor.Request, a fault.Action) (string, error) {
	g.asked = append(g.asked, "check "+a.Target)
	return g.holds[a.Target], g.err
}

func (g *gate) Take(_ context.Context, _ processor.Request, p repair.Part) (string, error) {
	g.asked = append(g.asked, "take "+p.Actions[0].Target)
	return g.holds["take "+p.Actions[0].Target], nil
}

func (g *gate) Ended(_ context.Context, _ processor.Request, a fault.Action, err error) {
	g.asked = append(g.asked, fmt.Sprint("ended ", a.Target, " ", err))
}

// TestExecuteInOrder: lock, rules, journal, action, journal, for each action; then the lock is released and all parts are proven.
func TestExecuteInOrder(t *testing.T) {
	t.Parallel()
	f, plan := newRemoval("a b", "c")
	e, g, j := repairtest.NewEngine(f), &gate{}, repairtest.NewJournal(plan)
	var order []string
	log := func(text string) { order, g.asked = append(append(order, g.asked...), text), nil }
	e.Gate = g
	e.Lock = func(context.Context) (func(), error) { log("lock"); return func() { log("release") }, nil }
	j.Hook = func(record string) {
		if at, ok := strings.CutPrefix(record, "after "); ok {
			log(fmt.Sprintf("%s, %d removed", at, len(f.did)))
		}
	}
	result, err := e.Execute(t.Context(), processor.Request{}, &plan, j)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"lock", "check a", "take a", "announce, 0 removed", "note, 1 removed", "ended a <nil>", "check b", "announce, 1 removed", "note, 2 removed",
		"ended b <nil>", "check c", "take c", "announce, 2 removed", "note, 3 removed", "ended c <nil>", "release", "verify, 3 removed",
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	healed := slices.DeleteFunc(result.Findings, func(f fault.Finding) bool { return !f.Healed })
	if len(healed) != 3 || result.Values["result"] != "a" || result.Values["known"] != "before" || result.Message != "said before" {
		t.Errorf("result %+v", result)
	}
	if f.opened != 2 {
		t.Errorf("%d series of actions for 2 parts", f.opened)
	}
}

// TestHeldChangesNothing, whether a rule holds an action, the budget is used up, or the answer is not known. Nothing is announced.
func TestHeldChangesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		gate gate
		held bool
		did  []string
	}{
		"all of it":     {gate{holds: map[string]string{"a": "paused"}}, true, nil},
		"the budget":    {gate{holds: map[string]string{"take a": "used up"}}, true, nil},
		"the rest":      {gate{holds: map[string]string{"b": "paused"}}, true, []string{"remove a"}},
		"it is unknown": {gate{err: errors.New("no answer")}, false, nil},
	} {
		f, plan := newRemoval("a b")
		e, j := repairtest.NewEngine(f), repairtest.NewJournal(plan)
		e.Gate = &tc.gate
		announced := 0
		j.Hook = func(record string) {
			if record == "before announce" {
				announced++
			}
		}
		_, err := e.Execute(t.Context(), processor.Request{}, &plan, j)
		_, waits := errors.AsType[*processor.WaitingError](err)
		if err == nil || processor.IsHeld(err) != tc.held || waits == tc.held || !slices.Equal(f.did, tc.did) || announced != len(tc.did) {
			t.Errorf("%s: error %v, did %q, announced %d", name, err, f.did, announced)
		}
	}
}

// TestFailedPartIsNotProven, and its faults stay; a part that waits does not count as failed.
func TestFailedPartIsNotProven(t *testing.T) {
	t.Parallel()
	f, plan := newRemoval("a b", "c d", "e")
	f.fails = map[string]error{"b": errors.New("busy"), "c": &processor.WaitingError{Err: errors.New("web-pdb")}}
	e, g := repairtest.NewEngine(f), &gate{}
	e.Gate = g
	result, err := e.Execute(t.Context(), processor.Request{}, &plan, repairtest.NewJournal(plan))
	if err == nil || !strings.Contains(err.Error(), `RemoveFile of "b": busy`) || !slices.Equal(f.did, []string{"remove a", "remove e", "verify e"}) {
		t.Errorf("error %v, did %q", err, f.did)
	}
	var healed []string
	for _, f := range result.Findings {
		if f.Healed {
			healed = append(healed, f.Volume)
		}
	}
	if len(result.Findings) != 5 || !slices.Equal(healed, []string{"e"}) {
		t.Errorf("findings %+v", result.Findings)
	}
	ended := slices.DeleteFunc(g.asked, func(s string) bool { return !strings.HasPrefix(s, "ended") })
	if !slices.Equal(ended, []string{"ended a <nil>", "ended b busy", "ended e <nil>"}) {
		t.Errorf("asked %q", ended)
	}
}

// TestKilledAtEveryRecord: a process that dies at any record and one that follows it do each action once, and end the same.
func TestKilledAtEveryRecord(t *testing.T) {
	t.Parallel()
	type death struct{}
	for n := 1; ; n++ {
		f, plan := newRemoval("a b", "c")
		j, records := repairtest.NewJournal(plan), 0
		j.Hook = func(string) {
			if records++; records == n {
				panic(death{})
			}
		}
		died := func() (died bool) {
			defer func() { died = recover() != nil }()
			_, err := repairtest.NewEngine(f).Execute(t.Context(), processor.Request{}, &plan, j)
			if err != nil {
				t.Error(err)
			}
			return false
		}()
		if !died {
			if records != 14 {
				t.Errorf("%d records", records)
			}
			return
		}
		j.Hook = nil
		result, err := repairtest.NewEngine(f).Execute(t.Context(), processor.Request{}, &plan, j)
		if err != nil || len(f.there) > 0 || slices.ContainsFunc(result.Findings, func(f fault.Finding) bool { return !f.Healed }) {
			t.Errorf("killed at record %d: %v, left %v, findings %+v", n, err, f.there, result.Findings)
		}
		f.did = slices.DeleteFunc(f.did, func(s string) bool { return strings.HasPrefix(s, "verify") })
		if !slices.Equal(f.did, []string{"remove a", "remove b", "remove c"}) {
			t.Errorf("killed at record %d: did %q", n, f.did)
		}
	}
}

// TestUnknownFamily: a plan of which a part has no family here changes nothing of that part.
func TestUnknownFamily(t *testing.T) {
	t.Parallel()
	f, plan := newRemoval("a", "b")
	plan.Parts[0].Family = "of another release"
	_, err := repairtest.NewEngine(f).Execute(t.Context(), processor.Request{}, &plan, repairtest.NewJournal(plan))
	if !processor.IsStalled(err) || !strings.Contains(err.Error(), `"of another release"`) || !f.there["a"] || f.there["b"] {
		t.Errorf("error %v, left %v", err, f.there)
	}
}
