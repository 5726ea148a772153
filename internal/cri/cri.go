// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cri reads from the container runtime of the node, over its socket, the records of the containers of a pod.
// It removes the record of a container that never started. It also lists the pods, for their names.
//
// It does not start, stop or change a container, and it keeps no connection between calls: the runtime may be
// restarted at any time. It speaks runtime.v1, and runtime.v1alpha2 with a runtime that is too old for that; the
// messages are the same. It rests on k8s.io/cri-api, and on the labels that the kubelet gives to every container and sandbox.
package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels that the kubelet gives to every container.
const (
	labelPodUID    = "io.kubernetes.pod.uid"
	labelContainer = "io.kubernetes.container.name"
)

// maxRecords bounds the records of one container that are read. A kubelet keeps one or two.
const maxRecords = 100

// ErrNotRemovable is returned for a container that is running, or has ever run: its record, and its log, are kept.
var ErrNotRemovable = errors.New("container record is not removed")

// Container is the runtime's record of one container.
type Container struct {
	ID     string
	PodUID string
	Name   string
	Exited bool
	// Created, Started and Finished are zero if the runtime does not know.
	Created, Started, Finished time.Time
	ExitCode                   int32
	Reason                     string
}

// NeverStarted reports whether the container has ended without a process of its own ever having run. dockershim gives
// such a container the time of its creation as the time of its start.
func (c Container) NeverStarted() bool {
	if !c.Exited || c.ExitCode == 0 {
		return false
	}
	return c.Started.IsZero() || c.Reason == "ContainerCannotRun" && c.Started.Equal(c.Created)
}

// Starting reports whether the container was made and has neither started nor failed to yet.
func (c Container) Starting() bool { return !c.Exited && c.Started.IsZero() }

// Client calls the runtime behind a socket. It is safe for use by several goroutines.
type Client struct {
	// Socket returns the path at which the runtime listens. Each call begins with it, as a kubelet may restart with another runtime.
	Socket func(ctx context.Context) (string, error)
}

// Records lists the runtime's records of one container of a pod, the newest first. ErrUnavailable if the runtime
// cannot be reached.
func (c *Client) Records(ctx context.Context, podUID, container string) ([]Container, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	records, err := conn.records(ctx, podUID, container)
	if err != nil {
		return nil, fmt.Errorf("list records of container %q: %w", container, err)
	}
	return records, nil
}

// PodRecords is Records of all containers of a pod.
func (c *Client) PodRecords(ctx context.Context, podUID string) ([]Container, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	records, err := conn.list(ctx, map[string]string{labelPodUID: podUID}, func(r Container) bool { return r.PodUID == podUID })
	if err != nil {
		return nil, fmt.Errorf("list records of pod %q: %w", podUID, err)
	}
	return records, nil
}

// Remove removes the record with that ID, PodUID and Name, if its container has exited and never
// started: ErrNotRemovable otherwise. If the pod's container has no record with that ID, Remove has no effect.
func (c *Client) Remove(ctx context.Context, record Container) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.close()
	// Runtimes differ in their errors for a missing container; all of them list the present ones.
	records, err := conn.records(ctx, record.PodUID, record.Name)
	if err == nil {
		i := slices.IndexFunc(records, func(r Container) bool { return r.ID == record.ID })
		switch {
		case i < 0:
		case !records[i].NeverStarted():
			err = fmt.Errorf("%w: the container runs or has run", ErrNotRemovable)
		default:
			request := &runtimeapi.RemoveContainerRequest{ContainerId: record.ID}
			err = conn.call(ctx, "RemoveContainer", request, &runtimeapi.RemoveContainerResponse{})
		}
	}
	if err != nil {
		return fmt.Errorf("remove record %q of container %q: %w", record.ID, record.Name, err)
	}
	return nil
}

func (c *connection) records(ctx context.Context, podUID, container string) ([]Container, error) {
	labels := map[string]string{labelPodUID: podUID, labelContainer: container}
	// A runtime that does not know the filter lists all containers.
	return c.list(ctx, labels, func(r Container) bool { return r.PodUID == podUID && r.Name == container })
}

// list returns the wanted records with these labels, the newest first.
func (c *connection) list(ctx context.Context, labels map[string]string, wanted func(Container) bool) ([]Container, error) {
	request := &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{LabelSelector: labels}}
	var response runtimeapi.ListContainersResponse
	if err := c.call(ctx, "ListContainers", request, &response); err != nil {
		return nil, err
	}
	var records []Container
	for _, listed := range response.GetContainers() {
		if len(records) == maxRecords {
			break
		}
		s, err := c.status(ctx, listed.GetId())
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if record := recordOf(s); wanted(record) {
			records = append(records, record)
		}
	}
	slices.SortFunc(records, func(a, b Container) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return records, nil
}

func (c *connection) status(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error) {
	var response runtimeapi.ContainerStatusResponse
	err := c.call(ctx, "ContainerStatus", &runtimeapi.ContainerStatusRequest{ContainerId: id}, &response)
	return response.GetStatus(), err
}

// recordOf returns the record of a container by its status.
func recordOf(s *runtimeapi.ContainerStatus) Container {
	return Container{
		ID:       s.GetId(),
		PodUID:   s.GetLabels()[labelPodUID],
		Name:     s.GetLabels()[labelContainer],
		Exited:   s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED,
		Created:  moment(s.GetCreatedAt()),
		Started:  moment(s.GetStartedAt()),
		Finished: moment(s.GetFinishedAt()),
		ExitCode: s.GetExitCode(),
		Reason:   s.GetReason(),
	}
}

// moment turns the runtime's nanoseconds into a time. Go's zero time, sent as nanoseconds, is far below zero.
func moment(nanoseconds int64) time.Time {
	if nanoseconds <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
