// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/pipeline/pipelinetest"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
	"kubediag.org/kubediag/internal/repair"
)

// rebindScene is a pod with a real volume, a container that runs, and one who heals them.
type rebindScene struct {
	*volumetest.Scene
	app     *kerneltest.Actor
	healer  *RebindRecoverer
	request processor.Request
}

func newRebindScene(t *testing.T) *rebindScene {
	t.Helper()
	s := volumetest.New(t)
	return &rebindScene{Scene: s, app: s.Start(), healer: &RebindRecoverer{Pods: s.Pods, Inspector: s.Inspector}, request: sceneRequest(s)}
}

func (w *rebindScene) planRepair(t *testing.T) repair.Part {
	t.Helper()
	p, err := w.healer.Plan(t.Context(), w.request)
	if err != nil {
		t.Fatal(err)
	}
	return throughJournal(t, p)
}

// applyActions does the actions and gives how each went.
func (w *rebindScene) applyActions(t *testing.T, actions []fault.Action) (all []fault.Applied) {
	t.Helper()
	for _, a := range actions {
		done, err := w.healer.apply(t.Context(), w.request, a, w.healer.Inspector.Open())
		if err != nil {
			t.Fatalf("%s of %q: %v", a.Kind, a.Target, err)
		}
		all = append(all, done)
	}
	return all
}

// expectRepaired makes sure that the host and the container that never stopped read what is in the volume now.
func (w *rebindScene) expectRepaired(t *testing.T, want string) {
	t.Helper()
	if host, inside := w.ReadHost(w.Point), w.Read(w.app); host != want || inside != want {
		t.Errorf("host reads %q, container %q, want %q", host, inside, want)
	}
}

func actionTargets(p repair.Part) (all []string) {
	for _, a := range p.Actions {
		all = append(all, strings.Join([]string{string(a.Kind), a.Target, a.Key().Container, string(a.Key().Code)}, " "))
	}
	return all
}

// TestHeals a volume whose daemon was killed and came back, under a container that runs.
func TestHeals(t *testing.T) {
	w := newRebindScene(t)
	other := w.Share()
	w.expectRepaired(t, "old")
	w.Kill()
	w.Remount("new")
	plan := w.planRepair(t)
	want := []string{"Replace " + w.Point + "  DisconnectedFUSE", "Replace /data app DisconnectedFUSE"}
	if diff := cmp.Diff(want, actionTargets(plan)); diff != "" || plan.NotApplicable != "" {
		t.Fatalf("plan (-want +got):\n%s%s", diff, plan.NotApplicable)
	}
	for _, a := range plan.Actions {
		if a.Mount == nil || a.Mount.ID == 0 && a.Mount.MountInfoID == 0 || !a.Lossless || !strings.Contains(a.Safety, w.Staging) {
			t.Errorf("action %+v", a)
		}
	}
	w.applyActions(t, plan.Actions)
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil {
		t.Fatal(err)
	}
	w.expectRepaired(t, "new")
	if !strings.Contains(result.Values[keyRebindResult], "replaced the mount at") || result.Values[keyRebindRefusals] != "" {
		t.Errorf("values %q", result.Values)
	}
	if len(result.Findings) != 2 || !result.Findings[0].Healed || !result.Findings[1].Healed || result.Findings[0].Code != fault.DisconnectedFUSE {
		t.Errorf("findings %+v", result.Findings)
	}
	// The other pod is told of, and is as dead as before.
	if !strings.Contains(result.Values[keyRebindSharedWith], volumetest.OtherUID) || !strings.Contains(w.ReadHost(other), "not connected") {
		t.Errorf("shares %s; at the other pod's place: %s", result.Values[keyRebindSharedWith], w.ReadHost(other))
	}
	if p := w.planRepair(t); !strings.Contains(p.NotApplicable, "no broken volume") {
		t.Errorf("once more: %+v", p)
	}
}

// TestVerifySeesWhatWasNotDone on the host and in the container.
func TestVerifySeesWhatWasNotDone(t *testing.T) {
	w := newRebindScene(t)
	w.Kill()
	w.Remount("new")
	p := w.planRepair(t)
	for done := range 2 {
		w.applyActions(t, p.Actions[:done])
		if _, err := processortest.Prove(t.Context(), w.healer, w.request, p); !processor.IsStalled(err) || !strings.Contains(err.Error(), "not all of it is repaired") {
			t.Errorf("%d done: %v", done, err)
		}
	}
}

// TestPlanThatIsOutOfDate: a mount that another process has repaired or mounted again meanwhile is left alone.
func TestPlanThatIsOutOfDate(t *testing.T) {
	w := newRebindScene(t)
	w.Kill()
	w.Remount("new")
	p := w.planRepair(t)
	w.applyActions(t, p.Actions)
	w.Kill()
	w.Remount("newer")
	before := w.Mounts()
	for _, a := range p.Actions {
		if done, err := w.healer.apply(t.Context(), w.request, a, w.healer.Inspector.Open()); !processor.IsStalled(err) {
			t.Errorf("%s of %q: %+v, %v, want a refusal: another mount is there", a.Kind, a.Target, done, err)
		}
	}
	if diff := cmp.Diff(before, w.Mounts()); diff != "" {
		t.Errorf("mounts have changed (-before +after):\n%s", diff)
	}
	w.applyActions(t, w.planRepair(t).Actions)
	w.expectRepaired(t, "newer")
}

// TestRebindInOtherWords: no sentence of a plan or of an action decides anything.
func TestRebindInOtherWords(t *testing.T) {
	pipelinetest.InOtherWords(t, func(t *testing.T) (repair.Family, processor.Request) {
		w := newRebindScene(t)
		w.Kill()
		w.Remount("new")
		return w.healer, w.request
	})
}

// TestAbortsWhenAsked, and only the connection of the volume that hangs.
func TestAbortsWhenAsked(t *testing.T) {
	w := newRebindScene(t)
	w.Stop()
	w.request.Values = map[string]string{paramRebindAbort: "true"}
	plan := w.planRepair(t)
	if len(plan.Actions) == 0 || plan.Actions[0].Kind != fault.Abort || plan.Actions[0].Lossless {
		t.Fatalf("plan %+v", plan)
	}
	w.request.Values = nil
	if _, err := w.healer.apply(t.Context(), w.request, plan.Actions[0], w.healer.Inspector.Open()); !processor.IsStalled(err) || !strings.Contains(err.Error(), paramRebindAbort) {
		t.Errorf("nobody asks any more: %v", err)
	}
	w.request.Values = map[string]string{paramRebindAbort: "true"}
	for i, done := range append(w.applyActions(t, plan.Actions[:1]), w.applyActions(t, plan.Actions[:1])...) {
		if done.Already != (i > 0) {
			t.Errorf("abort %d: %+v", i, done)
		}
	}
	result, err := processortest.Prove(t.Context(), w.healer, w.request, plan)
	if err != nil || !strings.Contains(result.Values[keyRebindResult], "aborted the connection") {
		t.Errorf("values %q, %v", result.Values, err)
	}
	for _, f := range result.Findings {
		if f.Healed {
			t.Errorf("healed: %+v", f)
		}
	}
	// The mount that hung is dead now, and is repaired when the driver has mounted it again.
	w.Remount("new")
	w.request.Values = nil
	plan = w.planRepair(t)
	w.applyActions(t, plan.Actions)
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, plan); err != nil {
		t.Error(err)
	}
	w.expectRepaired(t, "new")
}
