// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

func impactOf(f fault.Finding) fault.Impact { return fault.Known().Advise(f, fault.Caller{}).Impact }

// goingScene has a volume with a subPath bind of the kubelet's, and no container.
func goingScene(t *testing.T) (s *volumeScene, sub string) {
	t.Helper()
	s = newScene(t, deepDir)
	sub = s.Point(s.pod, pvName, "app", 1)
	s.Bind(s.p+"/sub", sub)
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
	actions, refusals, err := s.i.Plan(s.t.Context(), v, volume.PlanOptions{})
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
	s.server.Kill()
	end := s.podProcess()
	s.expectGoing(fault.DisconnectedFUSE, fault.ImpactNow, "which is in a control group of the pod")
	end()
	now := metav1.Now()
	s.pod.DeletionTimestamp = &now
	s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, "still has time")
	s.deletePod()
	actions := s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, "")
	before := len(s.Mounts())
	for _, a := range actions {
		if a.Kind != fault.Unmount || !a.Lossless || a.Mount.Point != s.p && a.Mount.Point != sub {
			t.Errorf("action %+v", a)
		}
		if done, err := s.i.Open()(t.Context(), a); err != nil || done.Already {
			t.Fatalf("apply %+v: %+v, %v", a, done, err)
		}
	}
	if proof, err := s.i.Verify(t.Context(), actions); err != nil || !proof.Healed || len(s.Mounts()) != before-2 {
		t.Errorf("%+v, %v, %d mounts, %d before", proof, err, len(s.Mounts()), before)
	}
}

// TestHungMountOfAGoingPod stays: it may answer again. Once its connection is gone, it goes.
func TestHungMountOfAGoingPod(t *testing.T) {
	s, _ := goingScene(t)
	s.deletePod()
	s.stopDaemon()
	s.expectGoing(fault.HungMount, fault.ImpactTerminating, "may recover")
	s.server.Kill()
	if actions := s.expectGoing(fault.DisconnectedFUSE, fault.ImpactTerminating, ""); len(actions) != 2 {
		t.Errorf("plan %+v", actions)
	}
}
