// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"strings"
	"testing"
)

func TestNamesPod(t *testing.T) {
	t.Parallel()
	const uid, id = "5e1b6f0a-8c3d-4a57-9a0e-0123456789ab", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	under := strings.ReplaceAll(uid, "-", "_")
	for cgroup, want := range map[string]bool{
		"0::/kubepods/burstable/pod" + uid + "/" + id + "\n":                                                           true,
		"9:pids:/\n0::/kubepods.slice/kubepods-pod" + under + ".slice/cri-containerd-" + id + ".scope\n":               true,
		"0::/kubelet.slice/kubelet-kubepods-besteffort-pod" + under + ".slice\n":                                       true,
		"0::/system.slice/kubepods-besteffort-pod" + under + ".slice:cri-containerd:" + id + "\n":                      true,
		"0::/../../pod" + uid + "/" + id + "\n":                                                                        true, // seen from a cgroup namespace
		"0::/kubepods/pod77777777-8c3d-4a57-9a0e-0123456789ab/" + id + "/kubelet/kubepods/pod" + uid + "/" + id + "\n": true, // a node in a pod
		"0::/kubepods/pod" + uid + " (deleted)\n":                                                                      true,
		"0::/kubepods/pod" + uid + "0/" + id + "\n":                                                                    false,
		"0::/kubepods/pod" + uid + "0/pod" + uid + "/" + id + "\n":                                                     true,
		"0::/kubepods/pod" + uid[:30] + "/" + id + "\n":                                                                false,
		"0::/kubepods/" + uid + "/" + id + "\n":                                                                        false,
		"0::/user.slice\n":                                                                                             false,
		"":                                                                                                             false,
	} {
		if got := NamesPod(cgroup, uid); got != want {
			t.Errorf("%q names the pod: %v, want %v", cgroup, got, want)
		}
	}
}

// records are those of each pod.
type records map[string][]Container

func (r records) PodRecords(_ context.Context, uid string) ([]Container, error) {
	if r == nil {
		return nil, ErrUnavailable
	}
	return r[uid], nil
}

// TestPodRunsByRecords of the runtime, of pods that have no process.
func TestPodRunsByRecords(t *testing.T) {
	t.Parallel()
	const uid = "5e1b6f0a-8c3d-4a57-9a0e-0123456789ab"
	for name, tc := range map[string]struct {
		runtime PodRuntime
		want    string
	}{
		"one has not ended": {records{uid: {{Name: "init", Exited: true}, {Name: "app"}}}, `container "app", which has not ended by the container runtime's records`},
		"all have ended":    {records{uid: {{Name: "init", Exited: true}, {Name: "app", Exited: true}}}, ""},
		"none":              {records{}, ""},
		"of another pod":    {records{"other": {{Name: "app"}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := PodRuns(t.Context(), tc.runtime, uid); err != nil || got != tc.want {
				t.Errorf("%q (%v), want %q", got, err, tc.want)
			}
		})
	}
	if got, err := PodRuns(t.Context(), records{}, ""); err == nil {
		t.Errorf("a pod without a UID: %q", got)
	}
}
