// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPodContainers are the newest of each name, of this pod alone.
func TestPodContainers(t *testing.T) {
	t.Parallel()
	named := func(pod, name string) func(*runtimeapi.ContainerStatus) {
		return func(s *runtimeapi.ContainerStatus) {
			s.Labels = map[string]string{labelPodUID: pod, labelContainer: name}
			s.Mounts = []*runtimeapi.Mount{{HostPath: "/h/" + s.Id, ContainerPath: "/c", Readonly: true}}
		}
	}
	c := serve(t, "v1", &fakeRuntime{records: []*runtimeapi.ContainerStatus{
		record("b-1", 1, named("pod", "b")), record("a-2", 2, named("pod", "a")), record("a-1", 1, named("pod", "a")),
		record("a-3", 3, named("other", "a")),
	}})
	all, err := c.PodContainers(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range all {
		got = append(got, one.Name+" "+one.ID)
		want := []Mount{{HostPath: "/h/" + one.ID, ContainerPath: "/c", ReadOnly: true, Propagation: PropagationNone}}
		if diff := cmp.Diff(want, one.Mounts); diff != "" || !one.NeverStarted() {
			t.Errorf("%+v, mounts (-want +got):\n%s", one, diff)
		}
	}
	if diff := cmp.Diff([]string{"a a-2", "b b-1"}, got); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}
