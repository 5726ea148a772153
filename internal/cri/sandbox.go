// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels that the kubelet gives to every sandbox, in addition to labelPodUID.
const (
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodName      = "io.kubernetes.pod.name"
)

// maxSandboxes bounds the sandboxes of a list. A node has a few hundred, those that have ended included.
const maxSandboxes = 10_000

// Sandbox is the runtime's record of the sandbox of a pod. The kubelet gave the names.
type Sandbox struct {
	PodUID, Namespace, Name string
	// Ready is set if it runs. A pod whose sandbox was recreated has others that do not run.
	Ready bool
}

// Sandboxes lists the runtime's records of the sandboxes of a kubelet, in no order, at most 10,000.
// ErrUnavailable if the runtime cannot be reached.
func (c *Client) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	var response runtimeapi.ListPodSandboxResponse
	if err := conn.call(ctx, "ListPodSandbox", &runtimeapi.ListPodSandboxRequest{}, &response); err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var found []Sandbox
	for _, s := range response.GetItems() {
		labels := s.GetLabels()
		if labels[labelPodUID] == "" {
			continue
		}
		if len(found) == maxSandboxes {
			break
		}
		found = append(found, Sandbox{
			PodUID: labels[labelPodUID], Namespace: labels[labelPodNamespace], Name: labels[labelPodName],
			Ready: s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		})
	}
	return found, nil
}
