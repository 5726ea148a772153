// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNewest bounds the containers that do not run and whose status is read.
const maxNewest = 1000

// State is the state of a container of a pod by its newest record.
type State struct {
	PodUID, Container string
	Running           bool
	// ExitCode is the exit code of a container that has ended.
	Ended    bool
	ExitCode int32
}

// States returns the newest record of each wanted container, in no order. It lists all containers in one call,
// and reads the status of those that do not run, at most 1,000. ErrUnavailable if the runtime cannot be reached.
func (c *Client) States(ctx context.Context, wanted func(podUID, container string) bool) ([]State, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	var response runtimeapi.ListContainersResponse
	if err := conn.call(ctx, "ListContainers", &runtimeapi.ListContainersRequest{}, &response); err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var states []State
	asked := 0
	for key, listed := range newestContainers(response.GetContainers(), wanted) {
		state := State{PodUID: key[0], Container: key[1], Running: listed.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING}
		if !state.Running {
			if asked++; asked > maxNewest {
				continue
			}
			s, err := conn.status(ctx, listed.GetId())
			if status.Code(err) == codes.NotFound {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("ask for container %q: %w", key[1], err)
			}
			record := recordOf(s)
			state.Ended, state.ExitCode = record.Exited, record.ExitCode
		}
		states = append(states, state)
	}
	return states, nil
}

// newestContainers returns the newest of the wanted containers, by the UID of the pod and the name.
func newestContainers(all []*runtimeapi.Container, wanted func(podUID, container string) bool) map[[2]string]*runtimeapi.Container {
	newest := map[[2]string]*runtimeapi.Container{}
	for _, listed := range all {
		key := [2]string{listed.GetLabels()[labelPodUID], listed.GetLabels()[labelContainer]}
		if known := newest[key]; wanted(key[0], key[1]) && (known == nil || known.GetCreatedAt() < listed.GetCreatedAt()) {
			newest[key] = listed
		}
	}
	return newest
}
