// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// TestOwnerOfAProcess goes from the processes of a real container and its sandbox to the pod, and to the mount that
// brings the node's mounts along.
func TestOwnerOfAProcess(t *testing.T) {
	c := startContainerd(t)
	in := filepath.Join(c.dir, "in")
	must(t, os.Mkdir(in, 0o755))
	must(t, mount.Bind(in, in))
	t.Cleanup(func() { _ = systest.UnmountPath(in, true) })
	must(t, sys.SetPropagation(in, sys.Shared, false)) // containerd asks for it
	sandbox, pod := c.sandbox("exporter")
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
		Image:    &runtimeapi.ImageSpec{Image: testImage},
		Labels: map[string]string{
			labelPodUID: pod.Metadata.Uid, labelPodNamespace: "default", labelPodName: "exporter-name", labelContainer: "app",
		},
		Mounts: []*runtimeapi.Mount{
			{HostPath: c.dir, ContainerPath: "/host", Readonly: true},
			{HostPath: in, ContainerPath: "/host/in", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		},
		Linux: &runtimeapi.LinuxContainerConfig{},
	}
	request := &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: pod}
	response, err := c.CreateContainer(t.Context(), request)
	must(t, err)
	must(t, c.start(response.ContainerId))

	client := &Client{Socket: func(context.Context) (string, error) { return c.socket(), nil }}
	for id, name := range map[string]string{response.ContainerId: "app", sandbox: ""} {
		got, err := client.Owner(t.Context(), c.cgroup(id))
		must(t, err)
		want := Owner{
			ContainerID: id, Container: name, PodUID: "exporter", PodNamespace: "default", PodName: "exporter-name",
			Image: got.Image, Created: got.Created, PID: got.PID, Mounts: got.Mounts,
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Created.IsZero() {
			t.Errorf("created %v, owner (-want +got):\n%s", got.Created, diff)
		}
	}
	owner, err := client.Container(t.Context(), response.ContainerId)
	must(t, err)
	if owner.Image != testImage {
		t.Errorf("image %q, want %q", owner.Image, testImage)
	}
	if _, known := owner.first(); !known {
		t.Errorf("first process %d is none of the container", owner.PID)
	}
	for point, want := range map[string]Mount{
		"/host/pods":   {c.dir, "/host", true, PropagationNone},
		"/host/in/dir": {in, "/host/in", false, PropagationHostToContainer},
	} {
		if got, ok := owner.Carrier(point); !ok || got != want {
			t.Errorf("%s is carried by %+v, want %+v", point, got, want)
		}
	}
	if _, err := client.Container(t.Context(), response.ContainerId[:12]); !errors.Is(err, ErrNotFound) {
		t.Errorf("a part of an ID: %v, want ErrNotFound", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	if got, err := client.Owner(t.Context(), string(own)); !errors.Is(err, ErrNotFound) {
		t.Errorf("of this test: %+v, %v, want ErrNotFound", got, err)
	}
}

// cgroup returns the text of /proc/PID/cgroup of the container's first process, whose number the shim has written down.
func (c *containerd) cgroup(id string) string {
	c.t.Helper()
	file, err := filepath.Glob(filepath.Join(c.dir, "state/io.containerd.runtime.v2.task/k8s.io", id, "init.pid"))
	must(c.t, err)
	if len(file) != 1 {
		c.t.Fatalf("%d files with the process of container %s, want one", len(file), id)
	}
	pid, err := os.ReadFile(file[0])
	must(c.t, err)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%s/cgroup", strings.TrimSpace(string(pid))))
	must(c.t, err)
	if diff := cmp.Diff([]string{id}, ContainerIDs(string(text))); diff != "" {
		c.t.Fatalf("containers in %q (-want +got):\n%s", text, diff)
	}
	return string(text)
}
