// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// PodContainer is the newest record of a container of a pod, with the mounts that the kubelet has asked for.
type PodContainer struct {
	Container
	Mounts []Mount
}

// PodContainers lists the newest record of each container of a pod, by name.
func (c *Client) PodContainers(ctx context.Context, podUID string) ([]PodContainer, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	request := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{labelPodUID: podUID}}}
	var response runtimeapi.ListContainersResponse
	if err := conn.call(ctx, "ListContainers", request, &response); err != nil {
		return nil, fmt.Errorf("list containers of pod %q: %w", podUID, err)
	}
	newest := map[string]*runtimeapi.Container{}
	for _, listed := range response.GetContainers() { // a runtime that does not know the filter lists everything
		name := listed.GetLabels()[labelContainer]
		if known := newest[name]; listed.GetLabels()[labelPodUID] == podUID && (known == nil || known.GetCreatedAt() < listed.GetCreatedAt()) {
			newest[name] = listed
		}
	}
	if len(newest) > maxRecords {
		return nil, fmt.Errorf("list containers of pod %q: %d of them, at most %d are asked about", podUID, len(newest), maxRecords)
	}
	var all []PodContainer
	for name, listed := range newest {
		one, err := conn.podContainer(ctx, listed.GetId())
		if status.Code(err) == codes.NotFound {
			continue // since then
		}
		if err != nil {
			return nil, fmt.Errorf("ask for container %q: %w", name, err)
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b PodContainer) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// podContainer asks for one container.
func (c *connection) podContainer(ctx context.Context, id string) (PodContainer, error) {
	var response runtimeapi.ContainerStatusResponse
	if err := c.call(ctx, "ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: id}, &response); err != nil {
		return PodContainer{}, err
	}
	s := response.GetStatus()
	return PodContainer{Container: recordOf(s), Mounts: mountsOf(s)}, nil
}
