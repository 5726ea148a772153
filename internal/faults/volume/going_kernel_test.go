// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/internal/mountstate"
)

func impactOf(f fault.Finding) fault.Impact { return fault.Known().Advise(f, fault.Caller{}).Impact }

// goingScene has a volume with a subPath bind of the kubelet's, and no container.
func goingScene(t *testing.T) (s *volumeScene, sub string) {
	t.Helper()
	s = newScene(t, deepDir)
	sub = s.Scene.Scene.Point(s.Pod, pvName, "app", 1)
	s.Bind(s.Point+"/sub", sub)
	t.Cleanup(func() { _ = systest.UnmountPath(sub, true) })
	return s, sub
}

// expectGoing has the volume's own mount and its bind have the fault, and the same said of both. empty is whether nothing is planned.
func (s *volumeScene) expectGoing(code fault.Code, impact fault.Impact, refusal string) (actions []fault.Action) {
	s.t.Helper()
	v := s.inspectVolume()
	findings := v.Findings()
	if len(findings) != 2 {
		s.t.Fatalf("findings %+v", findings)
	}
	for _, f := range findings {
		d := f.Details
		if f.Code != code || impactOf(f) != impact || !strings.Contains(d.Refusal.Text, refusal) || (d.Repair == "") != (refusal != "") {
			s.t.Errorf("impact %s, finding %+v", impactOf(f), f)
		}
	}
	actions, refusals, err := s.Inspector.Plan(s.t.Context(), v, volume.PlanOptions{})
	if s.must(err); len(actions)+len(refusals) != 2 || (len(actions) == 0) != (refusal != "") {
		s.t.Errorf("plan %+v, refusals %q", actions, refusals)
	}
	return actions
}

// TestGoingPodIsFreed: a FUSE connection that is gone never comes back, so its mounts are unmounted once the pod is over and the kubelet
// has had its time. The staging path is not the pod's.
func TestGoingPodIsFreed(t *testing.T) {
	s, sub := goingScene(t)
	s.deletePod()
	if v := s.inspectVolume(); v.Broken() || len(v.Findings()) != 0 {
		t.Fatalf("healthy: %+v", v.Findings())
	}
	s.Kill()
	end := s.podProcess()
	s.expectGoing(fault.DisconnectedFUSE, fault.ImpactNow, "which is in a control group of the pod")
	end()
	now := metav1.Now()
	s.Pod.DeletionTimestamp = &now
	s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, "still has time")
	s.deletePod()
	actions := s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, "")
	before := len(s.Mounts())
	for _, a := range actions {
		if a.Kind != fault.Unmount || !a.Lossless || a.Mount.Point != s.Point && a.Mount.Point != sub {
			t.Errorf("action %+v", a)
		}
		if done, err := s.Inspector.Open()(t.Context(), a); err != nil || done.Already {
			t.Fatalf("apply %+v: %+v, %v", a, done, err)
		}
	}
	if proof, err := s.Inspector.Verify(t.Context(), actions); err != nil || !proof.Healed || len(s.Mounts()) != before-2 {
		t.Errorf("%+v, %v, %d mounts, %d before", proof, err, len(s.Mounts()), before)
	}
}

// TestHungMountOfAGoingPod stays: it may answer again. Once its connection is gone, it goes.
func TestHungMountOfAGoingPod(t *testing.T) {
	s, _ := goingScene(t)
	s.deletePod()
	s.Stop()
	s.expectGoing(fault.HungMount, fault.ImpactTerminating, "may recover")
	s.Kill()
	if actions := s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, ""); len(actions) != 2 {
		t.Errorf("plan %+v", actions)
	}
}

// TestBindThatOutlivesItsVolume: the mount of the volume has gone, and a dead subPath bind of it keeps the pod. It is found by itself, with
// the key that it has beside its volume, and unmounted.
func TestBindThatOutlivesItsVolume(t *testing.T) {
	s, sub := goingScene(t)
	list := func() (found []fault.Finding, planned []fault.Action) {
		t.Helper()
		survey := s.survey(s.ofPod())
		text, err := json.Marshal(survey.Record())
		s.must(err)
		var again volume.Recording
		s.must(json.Unmarshal(text, &again))
		recorded := again.Judge(func(string) *corev1.Pod { return s.Pod })
		for n, v := range survey.Volumes {
			if v.Evidence.Name != pvName {
				continue
			}
			found = append(found, v.Findings()...)
			if diff := cmp.Diff(v.Findings(), recorded.Volumes[n].Findings()); diff != "" {
				t.Errorf("judged again (-asked +recorded):\n%s", diff)
			}
			actions, _ := s.planOf(v, volume.PlanOptions{})
			planned = append(planned, actions...)
		}
		return found, planned
	}
	s.must(systest.UnmountPath(s.Point, false))
	s.deletePod()
	if found, _ := list(); len(found) != 0 {
		t.Errorf("a bind that answers: %+v", found)
	}
	s.Kill()
	var found []fault.Finding
	var planned []fault.Action
	kerneltest.Await(t, "the bind to be asked", func() bool { // on a busy machine there is no time for each question
		found, planned = list()
		return len(found) > 0
	})
	if len(found) != 1 || len(planned) != 1 || planned[0].Mount.Point != sub || planned[0].Kind != fault.Unmount {
		t.Fatalf("findings %+v, plan %+v", found, planned)
	}
	f := found[0]
	if f.Code != fault.DisconnectedFUSE || f.Container != "app" || f.Details.Place != fault.PlaceSubPath || !f.Details.KeepsPod ||
		f.Details.Repair != fault.Unmount || impactOf(f) != fault.ImpactTerminating {
		t.Errorf("finding %+v", f)
	}
	before := len(s.Mounts())
	kerneltest.Await(t, "the unmount", func() bool {
		_, err := s.Inspector.Open()(t.Context(), planned[0])
		return err == nil
	})
	if proof, err := s.Inspector.Verify(t.Context(), planned); err != nil || !proof.Healed || len(s.Mounts()) != before-1 {
		t.Errorf("%+v, %v, %d mounts, %d before", proof, err, len(s.Mounts()), before)
	}
	if done, err := s.Inspector.Open()(t.Context(), planned[0]); err != nil || !done.Already {
		t.Errorf("a second time: %+v, %v", done, err)
	}
}

// TestBindOfAPodThatStays is left to those who judge binds.
func TestBindOfAPodThatStays(t *testing.T) {
	s, _ := goingScene(t)
	s.must(systest.UnmountPath(s.Point, false))
	s.Kill()
	survey, err := s.Inspector.Inspect(t.Context(), mountstate.Scope{PodUIDs: []string{string(s.Pod.UID)}})
	if err != nil || slices.ContainsFunc(survey.Volumes, func(v *volume.Health) bool { return v.Evidence.Origin.BindOf != "" }) {
		t.Errorf("%+v, %v", survey, err)
	}
}
