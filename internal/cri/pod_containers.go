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

// PodContainer is the newest record of a container of a pod, with the mounts that the kubelet has requested.
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
	// A runtime that does not know the filter lists all containers.
	newest := newestContainers(response.GetContainers(), func(uid, _ string) bool { return uid == podUID })
	if len(newest) > maxRecords {
		return nil, fmt.Errorf("list containers of pod %q: %d of them, at most %d are asked about", podUID, len(newest), maxRecords)
	}
	var all []PodContainer
	for key, listed := range newest {
		s, err := conn.status(ctx, listed.GetId())
		if status.Code(err) == codes.NotFound {
			continue // since then
		}
		if err != nil {
			return nil, fmt.Errorf("ask for container %q: %w", key[1], err)
		}
		all = append(all, PodContainer{Container: recordOf(s), Mounts: mountsOf(s)})
	}
	slices.SortFunc(all, func(a, b PodContainer) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}
