// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fakenode

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// fakeRuntime is a container runtime: its containers are processes that the node starts, in cgroups of their names. It
// listens where a runtime does, on a /run that only this process' mount namespace has.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	cgroups string

	mu         sync.Mutex
	containers map[string]*runtimeapi.ContainerStatus
}

// socket is the first place where a runtime is looked for.
const socket = "/run/k3s/containerd/containerd.sock"

func startRuntime(t testing.TB) *fakeRuntime {
	t.Helper()
	must(t, syscall.Mount("run", "/run", "tmpfs", 0, ""))
	t.Cleanup(func() { _ = syscall.Unmount("/run", syscall.MNT_DETACH) })
	must(t, os.MkdirAll(filepath.Dir(socket), 0o755))
	listener, err := net.Listen("unix", socket)
	must(t, err)
	r := &fakeRuntime{cgroups: mountCgroups(t), containers: map[string]*runtimeapi.ContainerStatus{}}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// mountCgroups mounts the cgroups where the test alone sees them, and gives the directory of those of the node.
func mountCgroups(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	must(t, syscall.Mount("none", root, "cgroup2", 0, ""))
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	dir := filepath.Join(root, "kubediag-stage")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) }) // where no other node has it
	return dir
}

// run starts a container of a pod: a process with the points mounted in it, and the directory of its cgroup. It ends with the
// test.
func (r *fakeRuntime) run(t testing.TB, c *runtimeapi.ContainerStatus) (container *kerneltest.Actor, dir string) {
	t.Helper()
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	c.Id = hex.EncodeToString(random)
	c.State, c.CreatedAt, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano(), time.Now().UnixNano()
	r.mu.Lock()
	r.containers[c.Id] = c
	r.mu.Unlock()
	dir = filepath.Join(r.cgroups, "cri-containerd-"+c.Id+".scope")
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { _ = os.Remove(dir) })
	cgroup, err := os.Open(dir)
	must(t, err)
	defer cgroup.Close()
	args := []string{t.TempDir()}
	for _, m := range c.Mounts {
		args = append(args, m.HostPath)
	}
	return kerneltest.StartWith(t, &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS, UseCgroupFD: true, CgroupFD: int(cgroup.Fd()),
	}, containerRole, args...), dir
}

// ListContainers is that of the CRI; so are the others.
func (r *fakeRuntime) ListContainers(_ context.Context, q *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	listed := &runtimeapi.ListContainersResponse{}
	for id, c := range r.containers {
		if want := q.GetFilter().GetId(); want == "" || want == id {
			listed.Containers = append(listed.Containers, &runtimeapi.Container{Id: id, State: c.State, CreatedAt: c.CreatedAt, Labels: c.Labels})
		}
	}
	return listed, nil
}

func (r *fakeRuntime) ContainerStatus(_ context.Context, q *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ContainerStatusResponse{Status: r.containers[q.GetContainerId()]}, nil
}

func (r *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{}, nil
}
