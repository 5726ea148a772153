// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package volume_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

// TestHostPathOfAPodThatIsOver: nothing of the pod mounts it any more, whatever has become of what is mounted there.
func TestHostPathOfAPodThatIsOver(t *testing.T) {
	s := bareScene(t, "vol1")
	s.Serve("old")
	kind := corev1.HostPathDirectory
	for _, name := range []string{"/", "/none"} {
		s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, corev1.Volume{Name: "host" + name[1:], VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: s.Staging + name, Type: &kind},
		}})
	}
	for phase, want := range map[corev1.PodPhase][]fault.Code{
		corev1.PodRunning: {"", fault.MissingBindSource}, corev1.PodSucceeded: nil, corev1.PodFailed: nil,
	} {
		s.Pod.Status.Phase = phase
		survey := s.survey(s.ofPod())
		if len(survey.Volumes) != len(want) {
			t.Fatalf("%s: %d volumes, want %d", phase, len(survey.Volumes), len(want))
		}
		for i, code := range want {
			if v := survey.Volumes[i]; v.Verdict.Code != code {
				t.Errorf("%s: volume %q has the fault %q, want %q", phase, v.Evidence.Name, v.Verdict.Code, code)
			}
		}
	}
}
