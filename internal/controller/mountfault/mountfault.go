// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountfault deletes the MountFaults of nodes that no longer exist. The agent of a node deletes its own, and
// Kubernetes those of a pod that is deleted; a fault of a node that is gone has neither.
package mountfault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// collectInterval is the time between two passes. They read from the API server itself, so that no object is deleted
// by an old cache.
const collectInterval = 10 * time.Minute

// The rights of the manager for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=list;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// Collector deletes in passes, the first one right after this process has become the leader.
type Collector struct {
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	Clock  clock.WithTicker
}

// SetupWithManager adds the collector to a manager.
func (c *Collector) SetupWithManager(m manager.Manager) error {
	return m.Add(kubeclient.Passes{
		Clock: c.Clock, Interval: collectInterval, Name: "mountfault", Failure: "Could not delete all MountFaults of nodes that are gone",
		Pass: c.collectAll,
	})
}

// collectAll deletes the MountFaults whose nodes do not exist, unless they have changed since they were read. It reads each node once.
func (c *Collector) collectAll(ctx context.Context) error {
	log, gone := logr.FromContextOrDiscard(ctx), map[string]bool{}
	var errs []error
	err := kubeclient.EachPage(ctx, c.Reader, &v1.MountFaultList{}, func(page *v1.MountFaultList) {
		for i := range page.Items {
			f := &page.Items[i]
			node := f.Status.Node
			absent, known := gone[node]
			if !known {
				var err error
				if absent, err = kubeclient.NodeAbsent(ctx, c.Reader, node); err != nil {
					errs = append(errs, err)
					continue
				}
				gone[node] = absent
			}
			if !absent {
				continue
			}
			switch deleted, err := kubeclient.DeleteUnchanged(ctx, c.Client, f); {
			case err != nil:
				errs = append(errs, fmt.Errorf("deleting mountfault %s/%s: %w", f.Namespace, f.Name, err))
			case deleted:
				log.Info("Deleted a MountFault of a node that is gone", "namespace", f.Namespace, "mountfault", f.Name, "node", node)
			}
		}
	})
	if err != nil {
		errs = append(errs, fmt.Errorf("listing mountfaults: %w", err))
	}
	return errors.Join(errs...)
}
