// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Started says when the newest container of that name in the pod was started, as the container runtime knows: the kubelet
// tells of it up to a second later. The time is zero where it was not started.
func (c *Cluster) Started(ctx context.Context, podUID, container string) (at time.Time, err error) {
	err = c.withRuntime(func(client criv1.RuntimeServiceClient) error {
		list, err := containers(ctx, client, map[string]string{labelPodUID: podUID, labelContainer: container})
		if err != nil || len(list) == 0 {
			return err
		}
		newest := slices.MaxFunc(list, func(a, b *criv1.Container) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
		status, err := client.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: newest.Id})
		if err != nil {
			return fmt.Errorf("ask for container %q: %w", newest.Id, err)
		}
		if n := status.Status.StartedAt; n > 0 {
			at = time.Unix(0, n)
		}
		return nil
	})
	return at, err
}
