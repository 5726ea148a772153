// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package critest plays a container runtime for tests.
package critest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime that has the records of containers, each of which is in a sandbox of its own. Any goroutine may call
// Records.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	Records func() []*runtimeapi.ContainerStatusResponse
}

// ListContainers has the filters of the CRI by name and by labels.
func (r *Runtime) ListContainers(_ context.Context, q *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	listed := &runtimeapi.ListContainersResponse{}
	for _, record := range r.Records() {
		c := record.Status
		matches := q.GetFilter().GetId() == "" || q.GetFilter().GetId() == c.Id
		for label, value := range q.GetFilter().GetLabelSelector() {
			matches = matches && c.Labels[label] == value
		}
		if matches {
			listed.Containers = append(listed.Containers, &runtimeapi.Container{Id: c.Id, State: c.State, CreatedAt: c.CreatedAt, Labels: c.Labels})
		}
	}
	return listed, nil
}

// ContainerStatus is the whole record.
func (r *Runtime) ContainerStatus(_ context.Context, q *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	all := r.Records()
	i := slices.IndexFunc(all, func(c *runtimeapi.ContainerStatusResponse) bool { return c.Status.Id == q.ContainerId })
	if i < 0 {
		return nil, errors.New("no such container")
	}
	return all[i], nil
}

// ListPodSandbox lists the sandbox of each container.
func (r *Runtime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	listed := &runtimeapi.ListPodSandboxResponse{}
	for _, c := range r.Records() {
		listed.Items = append(listed.Items, &runtimeapi.PodSandbox{Id: "sandbox-" + c.Status.Id, Labels: c.Status.Labels})
	}
	return listed, nil
}

// RemoveContainer removes no record.
func (r *Runtime) RemoveContainer(context.Context, *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// Labels are those that the kubelet gives a container.
func Labels(namespace, pod, uid, container string) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.namespace": namespace, "io.kubernetes.pod.name": pod, "io.kubernetes.container.name": container,
	}
}

// Listen has a runtime serve until the test ends, and returns its socket. Without a runtime no answer comes from there.
func Listen(t testing.TB, r *Runtime) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if r != nil {
		server := grpc.NewServer()
		runtimeapi.RegisterRuntimeServiceServer(server, r)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
	}
	return socket
}
