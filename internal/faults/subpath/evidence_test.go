// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// state is one that has a message, of a container that waits, or has ended after it was started at that time; 0: never.
func state(waits bool, reason, message string, started int64) corev1.ContainerState {
	if waits {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: reason, Message: message, ExitCode: 1, StartedAt: metav1.Unix(started, 0),
	}}
}

// TestRefusals has the same message wherever it can stand. A container that ran has written it itself.
func TestRefusals(t *testing.T) {
	t.Parallel()
	const text = "mounting /pods/u/volume-subpaths/v/c/0 to rootfs: not a directory: trying to mount a directory onto a file"
	backOff := state(true, "CrashLoopBackOff", "back-off 10s restarting failed container", 0)
	for name, c := range map[string]struct {
		state, last corev1.ContainerState
		want        []string
	}{
		"the kubelet refused":          {state: state(true, "CreateContainerConfigError", text, 0), want: []string{"state.waiting"}},
		"the runtime did not make it":  {state: state(true, "CreateContainerError", text, 0), want: []string{"state.waiting"}},
		"the runtime did not start it": {state: state(true, "RunContainerError", text, 0), want: []string{"state.waiting"}},
		"a hook's output":              {state: state(true, "PostStartHookError", text, 0)},
		"a registry's answer":          {state: state(true, "ErrImagePull", text, 0)},
		"never ran":                    {state: state(false, "StartError", text, 0), want: []string{"state.terminated"}},
		"never ran, by Docker":         {state: state(false, "ContainerCannotRun", text, 100), want: []string{"state.terminated"}},
		"never ran, backing off":       {state: backOff, last: state(false, "StartError", text, 0), want: []string{"lastState.terminated"}},
		"never ran, twice": {state(false, "StartError", text, 0), state(false, "StartError", text, 0),
			[]string{"state.terminated", "lastState.terminated"}},
		"forged, it failed":               {state: state(false, "Error", text, 100)},
		"forged, it succeeded":            {state: state(false, "Completed", text, 100)},
		"forged, it was killed":           {state: state(false, "OOMKilled", text, 100)},
		"forged, its start was forgotten": {state: state(false, "Unknown", text, 0)},
		"forged, failed, backing off":     {state: backOff, last: state(false, "Error", text, 100)},
		"forged, succeeded, backing off":  {state: backOff, last: state(false, "Completed", text, 100)},
		"it ran since":                    {state: state(false, "Error", "", 100), last: state(false, "StartError", text, 0)},
		"it runs": {state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			last: state(false, "StartError", text, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, r := range startRefusals(corev1.ContainerStatus{State: c.state, LastTerminationState: c.last}) {
				got = append(got, r.statusField)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("where refusals stand (-want +got):\n%s", diff)
			}
		})
	}
}
