// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podRuntime is a runtime that has sandboxes.
type podRuntime struct {
	fakeRuntime
	items []*runtimeapi.PodSandbox
}

func (r *podRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: r.items}, nil
}

// sandbox is the answer of a runtime about one.
func sandbox(uid string, state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		State:  state,
		Labels: map[string]string{labelPodUID: uid, labelPodNamespace: "default", labelPodName: uid + "-name"},
	}
}

func TestSandboxes(t *testing.T) {
	t.Parallel()
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := serve(t, version, &podRuntime{items: []*runtimeapi.PodSandbox{
				sandbox("runs", runtimeapi.PodSandboxState_SANDBOX_READY),
				sandbox("ended", runtimeapi.PodSandboxState_SANDBOX_NOTREADY),
				{Id: "not of a kubelet", Metadata: &runtimeapi.PodSandboxMetadata{Uid: "x", Name: "x"}},
			}})
			got, err := c.Sandboxes(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := []Sandbox{{"runs", "default", "runs-name", true}, {"ended", "default", "ended-name", false}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("sandboxes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSandboxesAreBounded(t *testing.T) {
	t.Parallel()
	r := &podRuntime{}
	for i := range maxSandboxes + 5 {
		r.items = append(r.items, sandbox(strconv.Itoa(i), runtimeapi.PodSandboxState_SANDBOX_READY))
	}
	got, err := serve(t, "v1", r).Sandboxes(t.Context())
	if err != nil || len(got) != maxSandboxes {
		t.Errorf("%d sandboxes, %v, want %d", len(got), err, maxSandboxes)
	}
}

func TestSandboxesWithoutARuntime(t *testing.T) {
	t.Parallel()
	c := &Client{Socket: func(context.Context) (string, error) { return t.TempDir() + "/none", nil }}
	if _, err := c.Sandboxes(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("error %v, want ErrUnavailable", err)
	}
}
