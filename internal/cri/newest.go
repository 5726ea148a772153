// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNewest bounds the containers whose status is read in one call: those that run, or those that do not.
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

// Running lists the running containers of the wanted pods with the mounts that the kubelet has requested, at most 1,000.
// ErrUnavailable if the runtime cannot be reached.
func (c *Client) Running(ctx context.Context, wanted func(podUID string) bool) (all []Owner, err error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	runs := runtimeapi.ContainerState_CONTAINER_RUNNING
	request := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{State: &runtimeapi.ContainerStateValue{State: runs}}}
	var response runtimeapi.ListContainersResponse
	if err := conn.call(ctx, "ListContainers", request, &response); err != nil {
		return nil, fmt.Errorf("list running containers: %w", err)
	}
	for _, listed := range response.GetContainers() {
		// A runtime that does not know the filter lists all containers.
		if uid := listed.GetLabels()[labelPodUID]; listed.GetState() != runs || uid == "" || !wanted(uid) || len(all) == maxNewest {
			continue
		}
		owner, err := conn.described(ctx, listed.GetId())
		if errors.Is(err, ErrNotFound) {
			continue // since then
		}
		if err != nil {
			return nil, fmt.Errorf("ask for container %q: %w", listed.GetId(), err)
		}
		all = append(all, owner)
	}
	return all, nil
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
