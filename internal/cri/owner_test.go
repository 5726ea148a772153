// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// exporter is the answer of a runtime about a container that has a copy of the node's mounts.
func exporter(id string) *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id: id, CreatedAt: 5 * second, Image: &runtimeapi.ImageSpec{Image: "node-exporter:1"},
		Labels: map[string]string{labelPodUID: "uid", labelPodNamespace: "monitoring", labelPodName: "exporter-x", labelContainer: "exporter"},
		Mounts: []*runtimeapi.Mount{
			{HostPath: "/", ContainerPath: "/host", Readonly: true},
			{HostPath: "/data", ContainerPath: "/data", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
			{HostPath: "/share", ContainerPath: "/share", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
			{HostPath: "/next", ContainerPath: "/next", Propagation: 9},
		},
	}
}

// exporterOwner is the same as this package returns it.
func exporterOwner(id string) Owner {
	return Owner{
		ContainerID: id, Container: "exporter", PodUID: "uid", PodNamespace: "monitoring", PodName: "exporter-x",
		Image: "node-exporter:1", Created: time.Unix(5, 0),
		Mounts: []Mount{
			{"/", "/host", true, PropagationNone},
			{"/data", "/data", false, PropagationHostToContainer},
			{"/share", "/share", false, PropagationBidirectional},
			{"/next", "/next", false, ""},
		},
	}
}

func TestContainer(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			pause := sandbox("uid", runtimeapi.PodSandboxState_SANDBOX_READY)
			pause.Id, pause.CreatedAt = idB, 4*second
			c := serve(t, version, &podRuntime{
				fakeRuntime: fakeRuntime{records: []*runtimeapi.ContainerStatus{record("other", 10, nil), exporter(idA)}},
				items:       []*runtimeapi.PodSandbox{sandbox("other", runtimeapi.PodSandboxState_SANDBOX_READY), pause},
			})
			for id, want := range map[string]Owner{
				idA: exporterOwner(idA),
				idB: {ContainerID: idB, PodUID: "uid", PodNamespace: "default", PodName: "uid-name", Created: time.Unix(4, 0)},
			} {
				got, err := c.Container(t.Context(), id)
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("%v; owner (-want +got):\n%s", err, diff)
				}
			}
			for _, id := range []string{"", idA[:12], idA + "0", "none"} {
				if got, err := c.Container(t.Context(), id); !errors.Is(err, ErrNotFound) {
					t.Errorf("%q: %+v, %v, want ErrNotFound", id, got, err)
				}
			}
		})
	}
}

func TestOwnerIsNotChosenByTheProcess(t *testing.T) {
	t.Parallel()
	attacker, victim := record(idA, 10, nil), exporter(idB)
	both := []*runtimeapi.ContainerStatus{victim, attacker}
	for name, c := range map[string]struct {
		cgroup string
		known  []*runtimeapi.ContainerStatus
		want   string
	}{
		"plain":                           {cgroup: "0::" + podGroup + idB + "\n", known: both, want: idB},
		"a cgroup of its own by the name": {cgroup: "0::" + podGroup + idA + podGroup + idB + "\n", known: both, want: idA},
		"node in a container":             {cgroup: "0::/docker/" + idA + podGroup + idB + "\n", known: both[:1], want: idB},
		"docker in a pod":                 {cgroup: "0::" + podGroup + idA + "/docker/" + idB + "\n", known: both[1:], want: idA},
		"of another runtime":              {cgroup: "0::/docker/" + idA + "\n", known: both[:1]},
		"no container":                    {cgroup: "0::/init.scope\n", known: both},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := serve(t, "v1", &podRuntime{fakeRuntime: fakeRuntime{records: c.known}}).Owner(t.Context(), c.cgroup)
			if c.want == "" && !errors.Is(err, ErrNotFound) || c.want != "" && err != nil || got.ContainerID != c.want {
				t.Errorf("owner %q, %v, want %q", got.ContainerID, err, c.want)
			}
		})
	}
}

func TestContainerThatTheRuntimeCannotDescribe(t *testing.T) {
	t.Parallel()
	broken := &podRuntime{fakeRuntime: fakeRuntime{records: []*runtimeapi.ContainerStatus{exporter(idA)}}}
	broken.statusErr = status.Error(codes.Internal, "broken")
	if _, err := serve(t, "v1", broken).Container(t.Context(), idA); status.Code(err) != codes.Internal || errors.Is(err, ErrNotFound) {
		t.Errorf("error %v, want the runtime's own", err)
	}
	broken.statusErr = status.Error(codes.NotFound, "gone")
	if _, err := serve(t, "v1", broken).Container(t.Context(), idA); !errors.Is(err, ErrNotFound) {
		t.Errorf("container that vanishes: %v, want ErrNotFound", err)
	}
	none := &Client{Socket: func(context.Context) (string, error) { return t.TempDir() + "/none", nil }}
	if _, err := none.Container(t.Context(), idA); !errors.Is(err, ErrUnavailable) {
		t.Errorf("no runtime: %v, want ErrUnavailable", err)
	}
}

func TestCarrier(t *testing.T) {
	t.Parallel()
	owner := Owner{Mounts: []Mount{
		{HostPath: "/", ContainerPath: "/host"},
		{HostPath: "/var/lib/kubelet", ContainerPath: "/host/var/lib/kubelet/"},
		{HostPath: "/older", ContainerPath: "/twice"},
		{HostPath: "/newer", ContainerPath: "/twice"},
		{HostPath: "/relative", ContainerPath: "relative"},
	}}
	for point, want := range map[string]string{
		"/host":                           "/",
		"/host/data/mnt":                  "/",
		"/host/var/lib/kubeletx":          "/",
		"/host/var/lib/kubelet":           "/var/lib/kubelet",
		"/host/var/lib/kubelet/plugins/x": "/var/lib/kubelet",
		"//host//var/lib/kubelet/../x":    "/",
		"/twice/x":                        "/newer",
		"/relative/x":                     "/relative",
		"/hostile":                        "",
		"/":                               "",
		"":                                "",
		"/host/../etc":                    "",
	} {
		got, ok := owner.Carrier(point)
		if got.HostPath != want || ok != (want != "") {
			t.Errorf("%q is carried by %q, %v, want %q", point, got.HostPath, ok, want)
		}
	}
	whole := Owner{Mounts: []Mount{{HostPath: "/all", ContainerPath: "/"}}}
	if got, ok := whole.Carrier("/x"); !ok || got.HostPath != "/all" {
		t.Errorf("a mount at / carries %v, %v", got, ok)
	}
	if _, ok := (Owner{}).Carrier("/x"); ok {
		t.Error("nothing carries something")
	}
}
