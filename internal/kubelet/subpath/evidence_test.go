// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
)

func TestHintsAreReadWhereverTheyStand(t *testing.T) {
	t.Parallel()
	const text = "mounting /pods/u/volume-subpaths/v/c/0 to rootfs: no such file or directory"
	for name, s := range map[string]corev1.ContainerStatus{
		"state.waiting":        {State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Message: text}}},
		"state.terminated":     {State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: text}}},
		"lastState.terminated": {LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: text}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := []Hint{{name, text, []fault.Code{fault.StaleSubPath}}}
			if diff := cmp.Diff(want, Hints(s)); diff != "" {
				t.Errorf("hints (-want +got):\n%s", diff)
			}
		})
	}
	long := Hint{"x", strings.Repeat("é", 1000), nil}.String()
	if len(long) > maxHint+200 || !strings.Contains(long, "é…") || !strings.Contains(long, "proves nothing") {
		t.Errorf("a long hint is told as %q", long)
	}
}
