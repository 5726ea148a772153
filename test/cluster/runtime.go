// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

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

// RemoveContainer does what "docker rm -f" did: it kills and removes the newest container of that name in the pod,
// behind the kubelet's back.
func (c *Cluster) RemoveContainer(ctx context.Context, podUID, container string) error {
	labels := map[string]string{"io.kubernetes.pod.uid": podUID, "io.kubernetes.container.name": container}
	return c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		list, err := client.ListContainers(ctx, &criv1.ListContainersRequest{
			Filter: &criv1.ContainerFilter{LabelSelector: labels},
		})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		var newest *criv1.Container
		for _, found := range list.Containers {
			if newest == nil || found.CreatedAt > newest.CreatedAt {
				newest = found
			}
		}
		if newest == nil {
			return fmt.Errorf("find container %q of pod %q: not there", container, podUID)
		}
		if _, err := client.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: newest.Id}); err != nil {
			return fmt.Errorf("stop container %q: %w", newest.Id, err)
		}
		if _, err := client.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: newest.Id}); err != nil {
			return fmt.Errorf("remove container %q: %w", newest.Id, err)
		}
		return nil
	})
}
