// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// withRuntime calls do with a client of the node's container runtime.
func (c *Cluster) withRuntime(do func(criv1.RuntimeServiceClient) error) error {
	conn, err := grpc.NewClient("unix://"+c.RuntimeEndpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial container runtime: %w", err)
	}
	defer conn.Close()
	return do(criv1.NewRuntimeServiceClient(conn))
}

// runtimeReady says whether the container runtime answers.
func (c *Cluster) runtimeReady(ctx context.Context) error {
	return c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		_, err := client.Version(ctx, &criv1.VersionRequest{})
		return err
	})
}

// RemoveContainer has the effect of "docker rm -f": it kills and removes the newest container of that name in the pod,
// behind the kubelet's back.
func (c *Cluster) RemoveContainer(ctx context.Context, podUID, container string) error {
	return c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		found, err := newest(ctx, client, podUID, container)
		if err != nil {
			return err
		}
		if found == nil {
			return fmt.Errorf("find container %q of pod %q: not there", container, podUID)
		}
		return remove(ctx, client, found)
	})
}

// Started says when the newest container of that name in the pod was started, as the container runtime knows: the
// kubelet reports it up to a second later. The time is zero if it was not started.
func (c *Cluster) Started(ctx context.Context, podUID, container string) (at time.Time, err error) {
	err = c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		found, err := newest(ctx, client, podUID, container)
		if err != nil || found == nil {
			return err
		}
		status, err := client.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: found.Id})
		if err != nil {
			return fmt.Errorf("ask for container %q: %w", found.Id, err)
		}
		if n := status.Status.StartedAt; n > 0 {
			at = time.Unix(0, n)
		}
		return nil
	})
	return at, err
}

// RemoveContainers kills all containers of the pod at once and removes every record of them, behind the kubelet's back.
// The kubelet counts its back-off from such records, so it starts all of them again without any.
func (c *Cluster) RemoveContainers(ctx context.Context, podUID string) error {
	return c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		list, err := containers(ctx, client, map[string]string{labelPodUID: podUID})
		if err != nil {
			return err
		}
		errs := make([]error, len(list))
		var wg sync.WaitGroup
		for i, found := range list {
			wg.Go(func() { errs[i] = remove(ctx, client, found) })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
}

// RemovePod takes everything of the pod out of the container runtime, as a reboot of the node does, behind the kubelet's
// back: its containers, which are killed, and its sandboxes.
func (c *Cluster) RemovePod(ctx context.Context, podUID string) error {
	return c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		list, err := client.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{
			Filter: &criv1.PodSandboxFilter{LabelSelector: map[string]string{labelPodUID: podUID}},
		})
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		for _, found := range list.Items {
			if _, err := client.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: found.Id}); err != nil {
				return fmt.Errorf("stop sandbox %q: %w", found.Id, err)
			}
			if _, err := client.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: found.Id}); err != nil {
				return fmt.Errorf("remove sandbox %q: %w", found.Id, err)
			}
		}
		return nil
	})
}

// Labels that the kubelet gives to every container.
const (
	labelPodUID    = "io.kubernetes.pod.uid"
	labelContainer = "io.kubernetes.container.name"
)

// newest is the newest container of that name in the pod; nil if there is none.
func newest(ctx context.Context, client criv1.RuntimeServiceClient, podUID, container string) (*criv1.Container, error) {
	list, err := containers(ctx, client, map[string]string{labelPodUID: podUID, labelContainer: container})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return slices.MaxFunc(list, func(a, b *criv1.Container) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) }), nil
}

func containers(ctx context.Context, client criv1.RuntimeServiceClient, labels map[string]string) ([]*criv1.Container, error) {
	list, err := client.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return list.Containers, nil
}

func remove(ctx context.Context, client criv1.RuntimeServiceClient, found *criv1.Container) error {
	if _, err := client.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: found.Id}); err != nil {
		return fmt.Errorf("stop container %q: %w", found.Id, err)
	}
	if _, err := client.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: found.Id}); err != nil {
		return fmt.Errorf("remove container %q: %w", found.Id, err)
	}
	return nil
}
