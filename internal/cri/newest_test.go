// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestStatesAreThoseOfTheNewestContainers(t *testing.T) {
	t.Parallel()
	of := func(pod, name string, state runtimeapi.ContainerState) func(*runtimeapi.ContainerStatus) {
		return func(s *runtimeapi.ContainerStatus) {
			s.State, s.Labels = state, map[string]string{labelPodUID: pod, labelContainer: name}
		}
	}
	const running, created = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_CREATED
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := serve(t, version, &fakeRuntime{records: []*runtimeapi.ContainerStatus{
				record("1", 10, nil),
				record("2", 30, of("pod", "app", running)),
				record("3", 20, nil),
				record("4", 10, of("pod", "side", running)),
				record("5", 20, of("pod", "side", runtimeapi.ContainerState_CONTAINER_EXITED)),
				record("6", 20, of("pod", "init", created)),
				record("7", 20, of("other", "app", running)),
			}})
			got, err := c.States(t.Context(), func(uid, _ string) bool { return uid == "pod" })
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(got, func(a, b State) int { return cmp.Compare(a.Container, b.Container) })
			want := []State{
				{PodUID: "pod", Container: "app", Running: true}, {PodUID: "pod", Container: "init", ExitCode: 128},
				{PodUID: "pod", Container: "side", Ended: true, ExitCode: 128},
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRunningContainers lists the running containers of the wanted pods, with their mounts and their first process. A container that ends
// meanwhile is left out.
func TestRunningContainers(t *testing.T) {
	t.Parallel()
	const running = runtimeapi.ContainerState_CONTAINER_RUNNING
	states := []runtimeapi.ContainerState{running, runtimeapi.ContainerState_CONTAINER_EXITED, running}
	var records []*runtimeapi.ContainerStatus
	for i, id := range []string{idA, idB, "other"} {
		s := exporter(id)
		s.State = states[i]
		records = append(records, s)
	}
	records[2].Labels = map[string]string{labelPodUID: "another"}
	for _, version := range versions {
		r := &fakeRuntime{records: records, info: map[string]string{"info": `{"pid": 77}`}}
		got, err := serve(t, version, r).Running(t.Context(), func(uid string) bool { return uid == "uid" })
		want := exporterOwner(idA)
		want.PID = 77
		if diff := gocmp.Diff([]Owner{want}, got); diff != "" || err != nil {
			t.Errorf("%v; containers (-want +got):\n%s", err, diff)
		}
		r.mu.Lock()
		r.statusErr = status.Error(codes.NotFound, "gone")
		r.mu.Unlock()
		if got, err := serve(t, version, r).Running(t.Context(), func(string) bool { return true }); len(got) > 0 || err != nil {
			t.Errorf("gone: %v, %v", got, err)
		}
	}
}
