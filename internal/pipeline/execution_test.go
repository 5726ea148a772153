// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

var ignoreTimes = []cmp.Option{
	cmpopts.IgnoreTypes(metav1.Time{}, &metav1.Time{}, &metav1.MicroTime{}),
	cmpopts.EquateEmpty(),
}

// The status is that of the walkthrough.
func TestWalkthrough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := diagnosis()
	d := w.run(t, before)
	if diff := cmp.Diff(diagnosis(), before); diff != "" {
		t.Errorf("the argument was changed:\n%s", diff)
	}
	mounts := func(f v1.Fault) uint64 { return f.Mount.ID }
	want := v1.DiagnosisStatus{
		Phase: v1.DiagnosisSucceeded, Outcome: v1.OutcomeHealed, Target: "pod default/p",
		Summary:    "Repaired StaleSubPath (container c, volume v, pod default/p) and 1 more",
		Checkpoint: &v1.Checkpoint{PathIndex: 0, NodeIndex: 3},
		Conditions: []metav1.Condition{
			{Type: "Accepted", Status: "True", Reason: "DiagnosisAccepted", Message: "Diagnosis is accepted by agent on node my-node", ObservedGeneration: 1},
			{Type: "Complete", Status: "True", Reason: "DiagnosisComplete", Message: "Diagnosis is completed", ObservedGeneration: 1},
		},
		OperationResults: map[string]string{
			"collector.kubernetes.pod.detail":             "{}",
			"collector.system.mountinfo":                  "7 8",
			"diagnoser.kubernetes.subpath_remount.result": "pod met a bug of subpath-remounting",
			"recover.kubernetes.subpath_remount.result":   "Succeesfully umount /m/7 on host",
		},
		SucceededPath: v1.Path{
			{ID: 1, Operation: "pod-detail-collector", To: []int32{2}},
			{ID: 2, Operation: "mount-info-collector", To: []int32{3}},
			{ID: 3, Operation: "subpath-remount-diagnoser", To: []int32{4}},
			{ID: 4, Operation: "subpath-remount-recover"},
		},
	}
	ignored := cmpopts.IgnoreFields(v1.DiagnosisStatus{}, "Operations", "Faults", "AdjacencyListHash", "Plan")
	if diff := cmp.Diff(want, d.Status, append(ignoreTimes, ignored)...); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if d.Status.StartTime == nil || d.Status.CompletionTime == nil || d.Status.AdjacencyListHash == "" {
		t.Errorf("start %v, completion %v, hash %q", d.Status.StartTime, d.Status.CompletionTime, d.Status.AdjacencyListHash)
	}
	for i, f := range d.Status.Faults {
		if f.State != v1.FaultHealed || mounts(f) != uint64(7+i) || f.Pod.UID != "pod-uid" || f.Evidence[0] != "nlink 0" {
			t.Errorf("fault %+v", f)
		}
	}
	if len(d.Status.Faults) != 2 || len(d.Status.Operations) != 4 {
		t.Errorf("%d faults, %d operations", len(d.Status.Faults), len(d.Status.Operations))
	}
	if diff := cmp.Diff(map[uint64]int{7: 1, 8: 1}, w.kernel.effects); diff != "" {
		t.Errorf("effects:\n%s", diff)
	}
	checkWrites(t, w)
}

// checkWrites sees that there were three: accepted, about to repair, ended.
func checkWrites(t *testing.T, w *world) {
	t.Helper()
	if len(w.saved) != 3 {
		t.Fatalf("%d writes, want 3", len(w.saved))
	}
	accepted, repairing := w.saved[0], w.saved[1]
	if accepted.Phase != v1.DiagnosisRunning || accepted.StartTime == nil || accepted.AdjacencyListHash == "" || len(accepted.Operations) != 0 ||
		!meta.IsStatusConditionTrue(accepted.Conditions, v1.ConditionAccepted) || len(accepted.Conditions) != 1 {
		t.Errorf("first write: %+v", accepted)
	}
	if len(repairing.Operations) != 4 || repairing.Checkpoint.NodeIndex != 3 || len(repairing.OperationResults) != 3 || repairing.Phase != v1.DiagnosisRunning {
		t.Fatalf("second write: %+v", repairing)
	}
	last := repairing.Operations[3]
	if last.Phase != v1.OperationRunning || len(last.Actions) != 2 || last.CompletionTime != nil {
		t.Errorf("recoverer in the second write: %+v", last)
	}
	want := v1.Action{
		Kind: "Unmount", Target: "/m/7", Mount: &v1.Mount{ID: 7}, Fault: "StaleSubPath", Safety: "nobody reads it", Loss: "nothing", Phase: v1.ActionPlanned,
	}
	if diff := cmp.Diff(want, last.Actions[0]); diff != "" {
		t.Errorf("action in the second write (-want +got):\n%s", diff)
	}
	if f := repairing.Faults; len(f) != 2 || f[0].State != v1.FaultPresent {
		t.Errorf("faults in the second write: %+v", f)
	}
}

func TestAnEndedDiagnosisIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, phase := range []v1.DiagnosisPhase{v1.DiagnosisSucceeded, v1.DiagnosisFailed} {
		d := diagnosis()
		d.Status.Phase = phase
		if got := w.run(t, d); !cmp.Equal(got, d) || len(w.saved) != 0 || len(w.kernel.effects) != 0 {
			t.Errorf("%s: %+v, %d writes", phase, got.Status, len(w.saved))
		}
	}
}

func TestEndings(t *testing.T) {
	t.Parallel()
	healthy := processor.Result{NotApplicable: "no mount of the pod is stale"}
	for name, test := range map[string]struct {
		prepare func(w *world, d *v1.Diagnosis)
		outcome v1.Outcome
		reason  string
		message string
	}{
		"not this fault": {
			func(w *world, _ *v1.Diagnosis) { w.replace(returns(healthy, nil).as("subpathRemountDiagnoser")) },
			v1.OutcomeNoFault, v1.ReasonNotApplicable,
			"operation subpath-remount-diagnoser (node 3) is not applicable: no mount of the pod is stale",
		},
		"an operation fails": {
			func(w *world, _ *v1.Diagnosis) {
				w.replace(fails(processor.Stalled(errBroken)).as("mountInfoCollector"))
			},
			v1.OutcomeError, v1.ReasonOperationFailed, "operation mount-info-collector (node 2) failed after 1 attempt: broken",
		},
		"an operation fails again and again": {
			func(w *world, _ *v1.Diagnosis) { w.replace(fails(errBroken).as("mountInfoCollector")) },
			v1.OutcomeError, v1.ReasonOperationFailed, "operation mount-info-collector (node 2) failed after 3 attempts: broken",
		},
		"not everything is judged": {
			func(w *world, _ *v1.Diagnosis) {
				w.replace(returns(processor.Result{NotApplicable: "not stale", Unjudged: []string{"volume v: host is down"}}, nil).as("subpathRemountDiagnoser"))
			},
			v1.OutcomeError, v1.ReasonNotJudged,
			"operation subpath-remount-diagnoser (node 3) found no fault, but not everything could be judged: volume v: host is down",
		},
		"a repair does not work": {
			func(w *world, _ *v1.Diagnosis) {
				w.replace(Step{Family: &unmounter{kernel: w.kernel, failVerify: always(errBroken)}})
			},
			v1.OutcomeFaultFound, v1.ReasonOperationFailed, "operation subpath-remount-recover (node 4) failed after 1 attempt: verifying: broken",
		},
		"set missing": {
			func(w *world, _ *v1.Diagnosis) { delete(w.sets, "set") },
			v1.OutcomeError, v1.ReasonOperationSetNotFound, "OperationSet set is not found",
		},
		"set not looked at": {
			func(w *world, _ *v1.Diagnosis) { w.sets["set"].Status.ObservedGeneration = 2 },
			v1.OutcomeError, v1.ReasonOperationSetNotReady, "OperationSet set is not ready: the manager has not looked at its latest specification",
		},
		"set not ready": {
			func(w *world, _ *v1.Diagnosis) {
				w.sets["set"].Status.Ready = false
				w.sets["set"].Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Message: "Operation x is not ready"}}
			},
			v1.OutcomeError, v1.ReasonOperationSetNotReady, "OperationSet set is not ready: Operation x is not ready",
		},
		"set with a cycle": {
			func(w *world, _ *v1.Diagnosis) { w.sets["set"].Spec.AdjacencyList[4].To = []int32{2} },
			v1.OutcomeError, v1.ReasonOperationSetNotReady,
			`OperationSet set is not ready: adjacencyList[2].to: "2 -> 3 -> 4 -> 2": is a cycle of 3 nodes`,
		},
		"set changed since": {
			func(_ *world, d *v1.Diagnosis) { d.Status.AdjacencyListHash = "other" },
			v1.OutcomeError, v1.ReasonOperationSetChanged, "OperationSet set specification has been changed during diagnosis execution",
		},
		"operation missing": {
			func(w *world, _ *v1.Diagnosis) { delete(w.operations, "mount-info-collector") },
			v1.OutcomeError, v1.ReasonOperationNotFound,
			"Operation mount-info-collector is not found: node 2 of OperationSet set names it",
		},
		"operation of an unknown processor": {
			func(w *world, _ *v1.Diagnosis) {
				w.operations["mount-info-collector"] = builtIn("mount-info-collector", "other")
			},
			v1.OutcomeError, v1.ReasonOperationInvalid,
			`Operation mount-info-collector of node 2 is invalid: spec.processor.path: Unsupported value: "/processor/other": ` +
				`supported values: "/processor/mountInfoCollector", "/processor/podDetailCollector", "/processor/subpathRemountDiagnoser", "/processor/unmounter"`,
		},
		"operation without a processor": {
			func(w *world, _ *v1.Diagnosis) { w.operations["mount-info-collector"].Spec.Processor = v1.Processor{} },
			v1.OutcomeError, v1.ReasonOperationInvalid,
			`Operation mount-info-collector of node 2 is invalid: spec.processor: Invalid value: ""`,
		},
		"operation with a time limit of 0": {
			func(w *world, _ *v1.Diagnosis) {
				*w.operations["mount-info-collector"].Spec.Processor.TimeoutSeconds = 0
			},
			v1.OutcomeError, v1.ReasonOperationInvalid,
			"Operation mount-info-collector of node 2 is invalid: spec.processor.timeoutSeconds: Invalid value: 0: must be between 1 and 86400",
		},
		"operation that is a function": {
			func(w *world, _ *v1.Diagnosis) {
				w.operations["mount-info-collector"].Spec.Processor = v1.Processor{Function: &v1.Function{}}
			},
			v1.OutcomeError, v1.ReasonOperationInvalid,
			"Operation mount-info-collector of node 2 is invalid: spec.processor.function: Forbidden: functions are not run",
		},
		"storage outside the data root": {
			func(w *world, _ *v1.Diagnosis) {
				w.operations["mount-info-collector"].Spec.Storage = &v1.Storage{HostPath: &v1.HostPathStorage{Path: "/etc"}}
			},
			v1.OutcomeError, v1.ReasonOperationInvalid,
			`Operation mount-info-collector of node 2 is invalid: spec.storage.hostPath.path: Invalid value: "/etc": must be below "`,
		},
		"scripts are off": {
			func(w *world, _ *v1.Diagnosis) {
				w.operations["mount-info-collector"].Spec.Processor = v1.Processor{ScriptRunner: &v1.ScriptRunner{Script: "true"}}
			},
			v1.OutcomeError, v1.ReasonOperationFailed,
			`operation mount-info-collector (node 2) failed after 1 attempt: scripts are off on node "my-node": its agent runs without --enable-scripts`,
		},
		"invalid Diagnosis": {
			func(_ *world, d *v1.Diagnosis) { d.Spec.PodReference.Name = "a/b" },
			v1.OutcomeError, v1.ReasonInvalid, `spec.podReference.name: Invalid value: "a/b"`,
		},
		"deadline": {
			func(w *world, d *v1.Diagnosis) {
				seconds := int32(20)
				d.Spec.ActiveDeadlineSeconds = &seconds
				w.replace(waits(func() {}).as("mountInfoCollector"))
			},
			v1.OutcomeError, v1.ReasonDeadlineExceeded,
			"the deadline of the Diagnosis has passed (spec.activeDeadlineSeconds: 20); operation mount-info-collector (node 2) failed after 1 attempt: context deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d := newWorld(t), diagnosis()
				test.prepare(w, d)
				s := w.run(t, d).Status
				c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete)
				if s.Phase != v1.DiagnosisFailed || s.Outcome != test.outcome || s.CompletionTime == nil || c == nil || s.StartTime == nil {
					t.Fatalf("status %+v", s)
				}
				if c.Status != metav1.ConditionFalse || c.Reason != test.reason || !strings.HasPrefix(c.Message, test.message) {
					t.Errorf("condition %+v\nwant message %s", c, test.message)
				}
				if !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionAccepted) || s.SucceededPath != nil {
					t.Errorf("status %+v", s)
				}
				if s.Outcome == v1.OutcomeNoFault && (len(w.kernel.effects) != 0 || len(w.saved) != 2 || len(s.FailedPaths) != 1 || s.Checkpoint.NodeIndex != 2) {
					t.Errorf("%d writes, status %+v", len(w.saved), s)
				}
				got := w.run(t, w.last(d))
				if diff := cmp.Diff(s, got.Status); diff != "" {
					t.Errorf("run again:\n%s", diff)
				}
			})
		})
	}
}

// fixedPlan is a planner that repairs nothing.
type fixedPlan repair.Plan

func (fixedPlan) Name() string { return "unmounter" }

func (p fixedPlan) Plan(context.Context, processor.Request) (repair.Plan, error) {
	return repair.Plan(p), nil
}

// TestNothingRepaired: the reason of an operation says that it has left each fault alone, and is not given otherwise.
func TestNothingRepaired(t *testing.T) {
	t.Parallel()
	gone := []fault.Absence{{Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: "default", Name: "p"}}}
	for name, c := range map[string]struct {
		planner repair.Planner // nil: one that repairs
		want    string
	}{
		"left alone":      {fixedPlan{Message: "the driver has to mount it again"}, v1.ReasonNothingRepaired},
		"nothing to say":  {fixedPlan{}, ""},
		"gone by itself":  {fixedPlan{Message: "it is gone", Gone: gone}, ""},
		"not this fault":  {fixedPlan{NotApplicable: "nothing is mounted"}, v1.ReasonNotApplicable},
		"it has repaired": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if c.planner != nil {
				w.replace(Step{Planner: c.planner})
			}
			if o := w.run(t, diagnosis()).Status.Operations[3]; o.Reason != c.want {
				t.Errorf("operation %+v, want the reason %q", o, c.want)
			}
		})
	}
}

// After everything was applied at once, the OperationSet is missing, then not ready, then ready.
func TestTheSetIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		set := w.sets["set"]
		delete(w.sets, "set")
		unready := set.DeepCopy()
		unready.Status = v1.OperationSetStatus{}
		time.AfterFunc(2*time.Second, func() { w.put(unready) })
		time.AfterFunc(9*time.Second, func() { w.put(set) })
		begin := time.Now()
		d := w.run(t, diagnosis())
		if took := time.Since(begin); d.Status.Phase != v1.DiagnosisSucceeded || took < 9*time.Second || took > 10*time.Second {
			t.Errorf("%s after %v", d.Status.Phase, took)
		}
	})
}

func TestTheSetIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		delete(w.sets, "set")
		begin := time.Now()
		w.run(t, diagnosis())
		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A set that changes while the operations run is noticed before anything is repaired.
func TestTheSetChangesBeforeTheRepair(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"changed": func(w *world) { w.sets["set"].Spec.AdjacencyList[2].Operation = "pod-detail-collector" },
		"deleted": func(w *world) { delete(w.sets, "set") },
		"broken":  func(w *world) { w.sets["set"].Spec.AdjacencyList[2].To = []int32{99} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.replace((&fakeProcessor{run: func(context.Context, processor.Request) (processor.Result, error) {
				change(w)
				return processor.Result{}, nil
			}}).as("mountInfoCollector"))
			s := w.run(t, diagnosis()).Status
			c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete)
			if s.Phase != v1.DiagnosisFailed || c.Reason != v1.ReasonOperationSetChanged || len(w.kernel.effects) != 0 {
				t.Errorf("%d effects, status %+v", len(w.kernel.effects), s)
			}
			o := s.Operations[3]
			if s.Outcome != v1.OutcomeFaultFound || o.Phase != v1.OperationFailed || o.Reason != v1.ReasonOperationSetChanged || o.Actions[0].Phase != v1.ActionPlanned {
				t.Errorf("outcome %q, recoverer %+v", s.Outcome, o)
			}
		})
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 3; n++ {
		w := newWorld(t)
		w.fail = atCall(n, fmt.Errorf("wrapped: %w", ErrGone))
		if _, err := w.start(t).Run(t.Context(), diagnosis()); !errors.Is(err, ErrGone) {
			t.Errorf("write %d: error %v", n, err)
		}
		if len(w.saved) != n-1 || n < 3 && len(w.kernel.effects) != 0 {
			t.Errorf("write %d: %d writes, %d effects", n, len(w.saved), len(w.kernel.effects))
		}
	}
}

// Whichever write fails, running the Diagnosis again ends the same, with one repair.
func TestWritesThatFail(t *testing.T) {
	t.Parallel()
	want := newWorld(t)
	wantStatus := want.run(t, diagnosis()).Status
	for n := 1; n <= 3; n++ {
		w := newWorld(t)
		w.fail = atCall(n, errBroken)
		if _, err := w.start(t).Run(t.Context(), diagnosis()); !errors.Is(err, errBroken) {
			t.Fatalf("write %d: error %v", n, err)
		}
		got := w.run(t, w.last(diagnosis())).Status
		ignored := cmpopts.IgnoreFields(v1.OperationRun{}, "Attempts")
		if diff := cmp.Diff(wantStatus, got, append(ignoreTimes, ignored)...); diff != "" {
			t.Errorf("write %d (-undisturbed +again):\n%s", n, diff)
		}
		if diff := cmp.Diff(want.kernel.effects, w.kernel.effects); diff != "" {
			t.Errorf("write %d: effects:\n%s", n, diff)
		}
	}
}

func TestAgentStopsAndGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	quick := w.steps[1]
	w.replace(waits(func() { cancel(ErrDeleted) }).as("mountInfoCollector"))
	if _, err := w.start(t).Run(ctx, diagnosis()); !errors.Is(err, ErrDeleted) || len(w.saved) != 1 || len(w.kernel.effects) != 0 {
		t.Fatalf("error %v, want the cause; %d writes, %d effects", err, len(w.saved), len(w.kernel.effects))
	}
	w.replace(quick)
	d := w.last(diagnosis())
	d.Status.Phase = v1.DiagnosisUnknown // the manager has noticed that the agent was gone
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionUnknown, Reason: v1.ReasonAgentLost})
	started := d.Status.StartTime.Time
	got := w.run(t, d).Status
	if got.Phase != v1.DiagnosisSucceeded || !got.StartTime.Time.Equal(started) || got.Operations[1].Attempts != 2 || got.Operations[0].Attempts != 1 {
		t.Errorf("status %+v", got)
	}
	if back := w.saved[1]; back.Phase != v1.DiagnosisRunning || meta.FindStatusCondition(back.Conditions, v1.ConditionComplete) != nil {
		t.Errorf("when it is back: %+v", back)
	}
}

// recordingObserver notes what an Observer hears.
type recordingObserver struct{ heard []string }

func (l *recordingObserver) Accepted(*v1.Diagnosis) { l.heard = append(l.heard, "accepted") }
func (l *recordingObserver) OperationEnded(d *v1.Diagnosis, run v1.OperationRun) {
	l.heard = append(l.heard, fmt.Sprintf("%s %s, %d faults", run.Operation, run.Phase, len(d.Status.Faults)))
}
func (l *recordingObserver) ActionEnded(d *v1.Diagnosis, operation string, a ActionEnd) {
	l.heard = append(l.heard, fmt.Sprintf("%s of %s: %s, %d faults", a.Kind, operation, a.Phase, len(d.Status.Faults)))
}
func (l *recordingObserver) Waiting(*v1.Diagnosis) { l.heard = append(l.heard, "waiting") }
func (l *recordingObserver) Ended(d *v1.Diagnosis) { l.heard = append(l.heard, string(d.Status.Phase)) }

func TestWhatAnObserverHears(t *testing.T) {
	t.Parallel()
	w, l := newWorld(t), &recordingObserver{}
	w.options = func(o *Options) { o.Observer = l }
	w.fail = atCall(3, errBroken)
	if _, err := w.start(t).Run(t.Context(), diagnosis()); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	w.run(t, w.last(diagnosis()))
	want := []string{
		"accepted",
		"pod-detail-collector Succeeded, 0 faults", "mount-info-collector Succeeded, 0 faults", "subpath-remount-diagnoser Succeeded, 2 faults",
		"Unmount of subpath-remount-recover: Done, 2 faults", "Unmount of subpath-remount-recover: Done, 2 faults",
		"subpath-remount-recover Succeeded, 2 faults", "Succeeded",
	}
	if diff := cmp.Diff(want, l.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

func TestFaultsOfOneMountAreOne(t *testing.T) {
	t.Parallel()
	old := func(parent int, healed bool) fault.Finding {
		return fault.Finding{Code: "StaleSubPath", Mount: fault.Mount{MountInfoID: 5, ParentID: parent, Root: "/a//deleted", Point: "/m", Device: "8:1"}, Healed: healed}
	}
	orphan := fault.Finding{Code: "OrphanedPodVolumes", Pod: fault.Pod{UID: "u"}, Volume: "v"}
	got := Faults([]fault.Finding{stale(7, false), old(1, false), old(2, false), orphan, stale(7, true), old(2, true), orphan})
	var states []v1.FaultState
	for _, f := range got {
		states = append(states, f.State)
	}
	if diff := cmp.Diff([]v1.FaultState{v1.FaultHealed, v1.FaultPresent, v1.FaultHealed, v1.FaultPresent}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if got[3].Mount != nil {
		t.Errorf("a fault without a mount has %+v", got[3].Mount)
	}
	other := func(code fault.Code, healed bool) fault.Finding {
		f := stale(7, healed)
		f.Code, f.Evidence = code, []string{string(code)}
		return f
	}
	got = Faults([]fault.Finding{stale(7, false), other(fault.DeletedVolumeSource, false)})
	if len(got) != 1 || got[0].Code != "StaleSubPath" || got[0].State != v1.FaultPresent || !slices.Contains(got[0].Evidence, "DeletedVolumeSource") {
		t.Errorf("one mount, two ways: %+v", got)
	}
	got = Faults([]fault.Finding{stale(7, false), other(fault.DeletedVolumeSource, false), other(fault.DeletedVolumeSource, true)})
	if len(got) != 1 || got[0].Code != "StaleSubPath" || got[0].State != v1.FaultHealed {
		t.Errorf("one mount, healed: %+v", got)
	}
	numbered := func(number uint64, healed bool) fault.Finding {
		f := old(1, healed)
		f.Mount.ID = number
		return f
	}
	for name, two := range map[string][]fault.Finding{
		"the later one lacks the number": {numbered(9, false), old(1, true)}, "the first one lacks it": {old(1, false), numbered(9, true)},
	} {
		if got = Faults(two); len(got) != 1 || got[0].State != v1.FaultHealed || got[0].Mount.ID != 9 {
			t.Errorf("one mount, %s: %+v", name, got)
		}
	}
	if got = Faults([]fault.Finding{numbered(8, false), numbered(9, true), old(1, true)}); len(got) != 2 || got[0].State != v1.FaultPresent {
		t.Errorf("two mounts at one place, one after the other: %+v", got)
	}
	if got = Faults([]fault.Finding{stale(7, false), other(fault.MissingBindSource, false)}); len(got) != 2 {
		t.Errorf("a bind whose source is missing is no broken mount: %+v", got)
	}
}

// The worst that definitions and processors can do still makes a status that can be stored.
func TestTheStatusFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := strings.Repeat("a", 253)
	w.operations[name] = builtIn(name, "mountInfoCollector")
	names := make([]string, graph.MaxNodes-1)
	for i := range names {
		names[i] = name
	}
	w.put(chain(names...))
	calls := 0
	w.replace(Step{Processor: &fakeProcessor{name: "mountInfoCollector", run: func(context.Context, processor.Request) (processor.Result, error) {
		calls++
		f := stale(uint64(calls), false)
		f.Evidence = []string{strings.Repeat("<", 5000)}
		return processor.Result{Values: map[string]string{fmt.Sprint("k", calls): strings.Repeat("x", 400)}, Findings: []fault.Finding{f}}, nil
	}}})
	d := diagnosis()
	d.Spec.Parameters = map[string]string{"p": strings.Repeat("x", v1.MaxParameterCharacters-1)}
	d.Annotations = map[string]string{"a": strings.Repeat("x", 500<<10)}
	d = w.run(t, d)
	text, err := json.Marshal(d)
	must(t, err)
	if len(text) > maxObjectBytes || d.Status.Phase != v1.DiagnosisSucceeded || len(d.Status.SucceededPath) != graph.MaxNodes-1 {
		t.Errorf("%d bytes, phase %s, %d nodes", len(text), d.Status.Phase, len(d.Status.SucceededPath))
	}
	if d.Status.Outcome != v1.OutcomeFaultFound || len(d.Status.Faults) == 0 {
		t.Errorf("outcome %s, %d faults", d.Status.Outcome, len(d.Status.Faults))
	}
}
