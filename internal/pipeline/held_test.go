// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
)

// TestFaultOfPlanIsReported: a fault that a plan proves is found, even if the plan is not carried out and no diagnoser ran
// before.
func TestFaultOfPlanIsReported(t *testing.T) {
	t.Parallel()
	held := processor.Held(errors.New("held by policy: policy p is paused. Next: set spec.paused of RecoveryPolicy p to false, and create another Diagnosis"))
	busy := func(o *Options) {
		o.Exclusive = func(ctx context.Context) (func(), error) {
			<-ctx.Done()
			return nil, errors.New("another process has the lock, process 7")
		}
	}
	for name, tc := range map[string]struct {
		refused map[uint64]error
		verify  error
		options func(*Options)
		states  []v1.FaultState
		reason  string
		message string // is in the condition and in the summary
	}{
		"held": {
			refused: map[uint64]error{7: held, 8: held}, states: []v1.FaultState{v1.FaultPresent, v1.FaultPresent}, reason: v1.ReasonRepairHeld,
			message: `operation subpath-remount-recover (node 1) may not repair now: held by policy: policy p is paused. Next: set spec.paused of RecoveryPolicy p to false, and create another Diagnosis`,
		},
		"one part held": {
			refused: map[uint64]error{8: held}, states: []v1.FaultState{v1.FaultHealed, v1.FaultPresent}, reason: v1.ReasonRepairHeld,
			message: "may not repair now: held by policy: policy p is paused. Next: set",
		},
		"not known whether held": {
			refused: map[uint64]error{7: &processor.WaitingError{Err: errors.New("asking what policies allow"), After: time.Second}, 8: held},
			states:  []v1.FaultState{v1.FaultPresent, v1.FaultPresent}, reason: v1.ReasonOperationFailed, message: "failed after 3 attempts: Unmount",
		},
		"busy lock": {
			options: busy, states: []v1.FaultState{v1.FaultPresent, v1.FaultPresent}, reason: v1.ReasonOperationFailed,
			message: "waiting for another program that repairs (create another Diagnosis when it has ended)",
		},
		"a repair fails": {
			refused: map[uint64]error{7: processor.Stalled(errBroken), 8: processor.Stalled(errBroken)},
			states:  []v1.FaultState{v1.FaultPresent, v1.FaultPresent}, reason: v1.ReasonOperationFailed, message: "failed after 1 attempt",
		},
		"the proof fails": {
			verify: errBroken, states: []v1.FaultState{v1.FaultPresent, v1.FaultPresent}, reason: v1.ReasonOperationFailed, message: "verifying: in parts: broken",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.put(chain("subpath-remount-recover"))
				w.options = tc.options
				r := &inParts{unmounter: unmounter{kernel: w.kernel}, parts: []int{1, 1}, refused: tc.refused}
				if tc.verify != nil {
					r.failVerify = always(tc.verify)
				}
				w.steps = append(w.steps, Step{Family: r})
				w.replace(Step{Planner: planner{r}})
				s := w.run(t, diagnosis()).Status
				c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete)
				if s.Phase != v1.DiagnosisFailed || s.Outcome != v1.OutcomeFaultFound || c.Reason != tc.reason {
					t.Errorf("phase %q, outcome %q, condition %+v", s.Phase, s.Outcome, c)
				}
				var states []v1.FaultState
				for _, f := range s.Faults {
					states = append(states, f.State)
				}
				if !slices.Equal(states, tc.states) {
					t.Errorf("faults %v, want %v", states, tc.states)
				}
				for _, text := range []string{c.Message, s.Summary} {
					if !strings.Contains(text, tc.message) {
						t.Errorf("%q does not contain %q", text, tc.message)
					}
				}
				if !strings.Contains(s.Summary, "Found, and not repaired: StaleSubPath") {
					t.Errorf("summary %q", s.Summary)
				}
			})
		})
	}
}

// TestHeldActionIsNoFailure: an action that is held was not tried, and counts as one that waits.
func TestHeldActionIsNoFailure(t *testing.T) {
	t.Parallel()
	j := newJob(t, nil, &unmounter{kernel: newKernel(1)})
	var ended []ActionEnd
	j.ActionEnded = func(_ string, _ func() report, a ActionEnd) { ended = append(ended, a) }
	runner := newRunner(t, t.TempDir())
	runner.Gate = &fakeGate{why: map[uint64]string{1: "policy p is paused"}}
	r := mustRun(t, runner, j)
	if len(ended) != 1 || !ended[0].Waiting || r.Operations[0].Reason != reasonHeld || r.Operations[0].Attempts != 1 {
		t.Errorf("actions %+v, operation %+v", ended, r.Operations[0])
	}
}

// TestPlanSaysWhatIsHeld: a plan that is not carried out names the rules that forbid it, each once. A plan that is has no need to ask
// before.
func TestPlanSaysWhatIsHeld(t *testing.T) {
	t.Parallel()
	gate := &fakeGate{why: map[uint64]string{1: "policy p is paused", 3: "policy p is paused"}, err: map[uint64]error{2: errBroken}}
	j := newJob(t, nil, &unmounter{kernel: newKernel(1, 2, 3)})
	j.PlanOnly = true
	at := t.TempDir()
	for range 2 { // the journal has it, too
		runner := newRunner(t, at)
		runner.Gate = gate
		report := mustRun(t, runner, j)
		p := report.Operations[0].Plan
		if !report.Planned || p.Actions != 3 || p.HeldActions != 2 || !slices.Equal(p.Held, []string{"policy p is paused", errBroken.Error()}) || gate.taken > 0 {
			t.Errorf("planned %v, taken %d, %+v", report.Planned, gate.taken, p)
		}
	}
	d := diagnosis()
	d.Status.Outcome, d.Status.Plan = v1.OutcomePlanned, &v1.Plan{Actions: 3, HeldActions: 3, Held: []string{"policy p is paused. Next: wait"}}
	if got := summary(d, report{Planned: true}, nil); !strings.HasSuffix(got, "planned 3 actions, and changed nothing. Held: policy p is paused. Next: wait") {
		t.Errorf("summary %q", got)
	}
	free := newRunner(t, t.TempDir())
	free.Gate = &fakeGate{}
	if p := mustRun(t, free, newJob(t, nil, &unmounter{kernel: newKernel(1)})).Operations[0].Plan; p.HeldActions != 0 || len(p.Held) != 0 {
		t.Errorf("a plan that was carried out: %+v", p)
	}
}

// TestOneRepairIsTakenForAPart, however many actions it has and however often it is tried.
func TestOneRepairIsTakenForAPart(t *testing.T) {
	t.Parallel()
	family := &inParts{unmounter: unmounter{kernel: newKernel(1, 2, 3, 4)}, parts: []int{3, 1}, refused: map[uint64]error{4: processor.Stalled(errBroken)}}
	gate := &fakeGate{}
	runner := newRunner(t, t.TempDir(), family)
	runner.Gate = gate
	mustRun(t, runner, newJob(t, nil, planner{family}))
	if gate.taken != 2 || gate.ended != 4 {
		t.Errorf("taken %d repairs for 2 parts, %d of 4 actions have ended", gate.taken, gate.ended)
	}
}
