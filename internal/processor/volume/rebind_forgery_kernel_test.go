// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/processortest"
)

// TestForgedValues: parameters and results of earlier operations that name other targets, sources and devices change
// nothing about the plan.
func TestForgedValues(t *testing.T) {
	w := newRebindScene(t)
	other := w.Share()
	w.Kill()
	w.Remount("new")
	honest := w.planRepair(t)
	lie, err := json.Marshal([]map[string]any{{
		"code": "DisconnectedFUSE", "pod": map[string]string{"uid": volumetest.OtherUID}, "name": volumetest.Volume, "point": other,
		"source": map[string]any{"path": "/etc", "mount": map[string]any{"point": "/"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.request.Values = map[string]string{paramRebindAbort: "true"}
	for _, key := range []string{
		"collector.kubernetes.volume_health.list", "diagnoser.kubernetes.volume_health.list", "collector.kubernetes.pod.detail",
		keyRebindResult, keyRebindResults, "recover.kubernetes.volume_rebind.target", "recover.kubernetes.volume_rebind.source",
	} {
		w.request.Values[key] = string(lie)
	}
	maps.Copy(w.request.Values, map[string]string{
		"pod.name": "other", "pod.uid": volumetest.OtherUID, "container": "../../etc", "device": "8:0", "volume": "../..", "source": "/etc",
		"diagnoser.kubernetes.volume_health.code": "HungMount",
	})
	if diff := cmp.Diff(honest, w.planRepair(t)); diff != "" {
		t.Errorf("plan (-honest +forged):\n%s", diff)
	}
	for _, name := range []string{"../../../" + volumetest.OtherUID, other, "*", "pvc-2"} {
		w.request.Values = map[string]string{volume.ParamVolume: name}
		if p := w.planRepair(t); len(p.Actions) > 0 {
			t.Errorf("volume %q: %q", name, actionTargets(p))
		}
	}
}

// TestForgedActions: an action can come from a journal that was tampered with. Whatever is no broken mount of a volume
// of this pod stays as it is.
func TestForgedActions(t *testing.T) {
	w := newRebindScene(t)
	other := w.Share()
	w.Kill()
	w.Remount("new")
	plan := w.planRepair(t)
	if len(plan.Actions) < 2 {
		t.Fatalf("plan %+v, want actions on the host and in the container", plan)
	}
	good := plan.Actions[0]
	table, err := mountns.Table(0)
	if err != nil {
		t.Fatal(err)
	}
	// mounted is a mount of the host as a plan would name it.
	mounted := func(point string) fault.Mount {
		m, ok := table.Top(point)
		if !ok {
			t.Fatalf("nothing is mounted at %q", point)
		}
		return fault.Mount{
			MountInfoID: m.ID, ParentID: m.Parent, Namespace: good.Mount.Namespace, Root: m.Root, Point: m.Point, FSType: m.FSType,
			Device: good.Mount.Device,
		}
	}
	edit := func(change func(m *fault.Mount)) fault.Mount {
		m := *good.Mount
		change(&m)
		return m
	}
	before, inside := w.Mounts(), w.MountsOf(w.app)
	for name, m := range map[string]fault.Mount{
		"another pod's volume":    mounted(other),
		"the staging path":        mounted(w.Staging),
		"the root":                mounted("/"),
		"another number":          edit(func(m *fault.Mount) { m.ID, m.MountInfoID = otherID(m.ID), m.MountInfoID+1_000_000 }),
		"another namespace":       edit(func(m *fault.Mount) { m.Namespace = plan.Actions[1].Mount.Namespace }),
		"nothing":                 {},
		"a point alone":           {Point: w.Point, Namespace: good.Mount.Namespace},
		"out of the volume":       edit(func(m *fault.Mount) { m.ID, m.Point = 0, m.Point+"/../../.." }),
		"the container's as ours": inOwnNamespace(*plan.Actions[1].Mount, good.Mount.Namespace),
	} {
		for _, kind := range []fault.ActionKind{fault.Replace, fault.Abort} {
			w.request.Values = map[string]string{paramRebindAbort: "true"}
			a := fault.Action{Kind: kind, Target: w.Point, Mount: &m, For: good.For}
			if done, err := w.healer.apply(t.Context(), w.request, a, w.healer.Inspector.Open()); !processor.IsStalled(err) {
				t.Errorf("%s of %s: %+v, %v, want a refusal", kind, name, done, err)
			}
		}
	}
	if diff := cmp.Diff(before, w.Mounts()); diff != "" || !cmp.Equal(inside, w.MountsOf(w.app)) {
		t.Errorf("mounts have changed (-before +after):\n%s", diff)
	}
	if !strings.Contains(w.ReadHost(other), "not connected") {
		t.Errorf("the other pod's volume: %s", w.ReadHost(other))
	}
}

// otherID is another id; 0, where the kernel has none, stays.
func otherID(id uint64) uint64 { return id + min(id, 1) }

func inOwnNamespace(m fault.Mount, namespace uint64) fault.Mount {
	m.Namespace = namespace
	return m
}

// TestAnotherPodOfTheName has none of the volumes of the one before it.
func TestAnotherPodOfTheName(t *testing.T) {
	w := newRebindScene(t)
	w.Kill()
	w.Remount("new")
	plan := w.planRepair(t)
	namesake := w.Pod.DeepCopy()
	namesake.UID = "3d1b0f6e-8f4a-4f1d-8a57-6d1f6b0e9c33"
	w.Pods.Set(namesake)
	before := w.Mounts()
	for _, a := range plan.Actions {
		if done, err := w.healer.apply(t.Context(), w.request, a, w.healer.Inspector.Open()); !processor.IsStalled(err) {
			t.Errorf("%s of %q: %+v, %v, want a refusal", a.Kind, a.Target, done, err)
		}
	}
	if _, err := processortest.Prove(t.Context(), w.healer, w.request, plan); !processor.IsStalled(err) {
		t.Errorf("verify: %v", err)
	}
	if diff := cmp.Diff(before, w.Mounts()); diff != "" {
		t.Errorf("mounts have changed (-before +after):\n%s", diff)
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

// TestUnrepairableVolumes of a real pod: dead without a source, and not as soon as there is one.
func TestUnrepairableVolumes(t *testing.T) {
	w := newRebindScene(t)
	j := &UnrepairableJudge{Inspector: w.Inspector}
	judge := func(want int, reason string) {
		t.Helper()
		findings, reasons, err := j.Unrepairable(t.Context(), string(w.Pod.UID))
		if err != nil || len(findings) != want || !strings.Contains(strings.Join(reasons, "; "), reason) {
			t.Errorf("findings %+v, reasons %q, %v; want %d, %q", findings, reasons, err, want, reason)
		}
	}
	judge(0, "1 volumes on file systems that can die were looked at")
	w.Kill()
	judge(2, "is not alive either")
	w.Remount("new")
	judge(0, `volume "`+volumetest.Volume+`" can be repaired where it is`)
}
