// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeRuntime is there to give the answers that a real runtime cannot be made to give.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	statusErr error             // what ContainerStatus answers with
	info      map[string]string // its verbose answer

	mu      sync.Mutex
	records []*runtimeapi.ContainerStatus
	removed []string
}

// ListContainers ignores the filter, as some runtimes do.
func (r *fakeRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var listed []*runtimeapi.Container
	for _, c := range r.records {
		listed = append(listed, &runtimeapi.Container{Id: c.Id, State: c.State, CreatedAt: c.CreatedAt, Labels: c.Labels})
	}
	return &runtimeapi.ListContainersResponse{Containers: listed}, nil
}

func (r *fakeRuntime) ContainerStatus(_ context.Context, q *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.records, func(c *runtimeapi.ContainerStatus) bool { return c.Id == q.ContainerId })
	if r.statusErr != nil {
		return nil, r.statusErr
	}
	response := &runtimeapi.ContainerStatusResponse{Status: r.records[i]}
	if q.Verbose {
		response.Info = r.info
	}
	return response, nil
}

func (r *fakeRuntime) RemoveContainer(_ context.Context, q *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = slices.DeleteFunc(r.records, func(c *runtimeapi.ContainerStatus) bool { return c.Id == q.ContainerId })
	r.removed = append(r.removed, q.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// serve starts a runtime of that version and returns a client of it.
func serve(t *testing.T, version string, r runtimeapi.RuntimeServiceServer) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "cri") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	desc := runtimeapi.RuntimeService_ServiceDesc
	desc.ServiceName = "runtime." + version + ".RuntimeService"
	server.RegisterService(&desc, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return &Client{Socket: func(context.Context) (string, error) { return socket, nil }}
}

const second = int64(time.Second)

// record is the answer of a runtime about a container that never started.
func record(id string, created int64, change func(*runtimeapi.ContainerStatus)) *runtimeapi.ContainerStatus {
	s := &runtimeapi.ContainerStatus{
		Id: id, State: runtimeapi.ContainerState_CONTAINER_EXITED, ExitCode: 128, Reason: "StartError",
		CreatedAt: created * second, FinishedAt: (created + 1) * second,
		Labels: map[string]string{labelPodUID: "pod", labelContainer: "app"},
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestRecords(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := serve(t, version, &fakeRuntime{records: []*runtimeapi.ContainerStatus{
				record("old", 10, nil),
				record("new", 20, nil),
				record("other container", 30, func(s *runtimeapi.ContainerStatus) { s.Labels[labelContainer] = "sidecar" }),
				record("other pod", 40, func(s *runtimeapi.ContainerStatus) { s.Labels[labelPodUID] = "pod2" }),
			}})
			got, err := c.Records(t.Context(), "pod", "app")
			if err != nil {
				t.Fatal(err)
			}
			want := []Container{
				{ID: "new", PodUID: "pod", Name: "app", Exited: true, Created: time.Unix(20, 0), Finished: time.Unix(21, 0), ExitCode: 128, Reason: "StartError"},
				{ID: "old", PodUID: "pod", Name: "app", Exited: true, Created: time.Unix(10, 0), Finished: time.Unix(11, 0), ExitCode: 128, Reason: "StartError"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodRecords(t *testing.T) {
	t.Parallel()
	c := serve(t, "v1", &fakeRuntime{records: []*runtimeapi.ContainerStatus{
		record("old", 10, nil),
		record("sidecar", 30, func(s *runtimeapi.ContainerStatus) { s.Labels[labelContainer] = "sidecar" }),
		record("other pod", 40, func(s *runtimeapi.ContainerStatus) { s.Labels[labelPodUID] = "pod2" }),
		record("new", 20, nil),
	}})
	got, err := c.PodRecords(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range got {
		ids = append(ids, r.Name+" "+r.ID)
	}
	if diff := cmp.Diff([]string{"sidecar sidecar", "app new", "app old"}, ids); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestRemoveOnlyWhatNeverStarted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*runtimeapi.ContainerStatus)
		want    Container
		removed bool
		err     error
	}{
		"never started": {removed: true},
		"never started under dockershim": {
			change:  func(s *runtimeapi.ContainerStatus) { s.Reason, s.StartedAt = "ContainerCannotRun", s.CreatedAt },
			removed: true,
		},
		"zero time in nanoseconds": {
			change:  func(s *runtimeapi.ContainerStatus) { s.StartedAt = time.Time{}.UnixNano() },
			removed: true,
		},
		"has run": {
			change: func(s *runtimeapi.ContainerStatus) { s.StartedAt = s.CreatedAt + 1 },
			err:    ErrNotRemovable,
		},
		"ran for no time at all": {
			change: func(s *runtimeapi.ContainerStatus) { s.Reason, s.StartedAt = "Error", s.CreatedAt },
			err:    ErrNotRemovable,
		},
		"succeeded": {
			change: func(s *runtimeapi.ContainerStatus) { s.ExitCode = 0 },
			err:    ErrNotRemovable,
		},
		"created": {
			change: func(s *runtimeapi.ContainerStatus) { s.State = runtimeapi.ContainerState_CONTAINER_CREATED },
			err:    ErrNotRemovable,
		},
		"running": {
			change: func(s *runtimeapi.ContainerStatus) {
				s.State, s.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, s.CreatedAt
			},
			err: ErrNotRemovable,
		},
		"state unknown": {
			change: func(s *runtimeapi.ContainerStatus) { s.State = runtimeapi.ContainerState_CONTAINER_UNKNOWN },
			err:    ErrNotRemovable,
		},
		"of another pod":       {change: func(s *runtimeapi.ContainerStatus) { s.Labels[labelPodUID] = "pod2" }},
		"of another container": {change: func(s *runtimeapi.ContainerStatus) { s.Labels[labelContainer] = "sidecar" }},
		"gone already":         {change: func(s *runtimeapi.ContainerStatus) { s.Id = "another" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &fakeRuntime{records: []*runtimeapi.ContainerStatus{record("id", 10, c.change), record("id2", 20, nil)}}
			err := serve(t, "v1", r).Remove(t.Context(), Container{ID: "id", PodUID: "pod", Name: "app"})
			if !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			want := []string{"id"}
			if !c.removed {
				want = nil
			}
			if diff := cmp.Diff(want, r.removed); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecordThatVanishesIsLeftOut(t *testing.T) {
	t.Parallel()
	r := &fakeRuntime{records: []*runtimeapi.ContainerStatus{record("id", 10, nil)}, statusErr: status.Error(codes.NotFound, "gone")}
	got, err := serve(t, "v1", r).Records(t.Context(), "pod", "app")
	if err != nil || got != nil {
		t.Errorf("records = %v, %v, want none", got, err)
	}
	r.statusErr = status.Error(codes.Internal, "broken")
	if _, err := serve(t, "v1", r).Records(t.Context(), "pod", "app"); status.Code(err) != codes.Internal {
		t.Errorf("error %v, want the runtime's own", err)
	}
}

func TestRuntimeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "deaf")) // no process accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	noSocket := errors.New("no socket")
	for name, c := range map[string]struct {
		socket func(context.Context) (string, error)
		limit  time.Duration
		want   error
	}{
		"nobody listens": {func(context.Context) (string, error) { return filepath.Join(dir, "none"), nil }, time.Minute, ErrUnavailable},
		"not known":      {func(context.Context) (string, error) { return "", noSocket }, time.Minute, noSocket},
		"hangs":          {func(context.Context) (string, error) { return l.Addr().String(), nil }, 200 * time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			_, err := (&Client{Socket: c.socket}).Records(ctx, "pod", "app")
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if name == "hangs" && status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("error %v, want the deadline", err)
			}
		})
	}
	if _, err := serve(t, "v0", &fakeRuntime{}).Records(t.Context(), "pod", "app"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("runtime that speaks no CRI: %v, want ErrUnavailable", err)
	}
}
