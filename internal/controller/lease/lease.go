// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package lease deletes the Leases of agents whose nodes are gone for good. No other component does. A Lease of an
// agent has no owner, and a cluster that grows and shrinks would keep one for every node that it ever had. It also
// deletes the slots of budgets whose periods are over, which are Leases as well.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

const (
	// sweepInterval is the time between two passes. They keep no cache of Leases, and make no further request for those of live agents.
	sweepInterval = 10 * time.Minute
	// leaseRetention is the time that a Lease stays after its last renewal. A node that is gone for a while, as for a
	// reboot on some clouds, finds its Lease there; if it comes back later, it makes a new one.
	leaseRetention = time.Hour
	// slotRetention is the time that a slot of a budget stays after its period.
	slotRetention = 5 * time.Minute
	// maxErrors is how many Leases cannot be deleted before a pass ends: the next one deletes the rest. A taken-over agent can make any number of
	// them.
	maxErrors = 10
	// maxPeriod is the longest period that a RecoveryPolicy can have.
	maxPeriod = time.Duration(v1.MaxAtOnce) * time.Hour
)

// The permissions of the manager for this.
//
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=list;delete,namespace=kubediag
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// Sweeper deletes in passes, the first one right after this process has become the leader.
type Sweeper struct {
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	Clock  clock.WithTicker
	// Namespace is where the Leases are.
	Namespace string
}

// SetupWithManager adds the sweeper to a manager.
func (s *Sweeper) SetupWithManager(m manager.Manager) error {
	return m.Add(kubeclient.Passes{
		Clock: s.Clock, Interval: sweepInterval, Name: "lease", Failure: "Could not delete the Leases of all agents whose nodes are gone",
		Pass: s.deleteOldLeases,
	})
}

// deleteOldLeases deletes the Leases of agents that were not renewed for an hour and whose nodes do not exist.
func (s *Sweeper) deleteOldLeases(ctx context.Context) error {
	var errs []error
	err := kubeclient.EachPage(ctx, s.Reader, &coordinationv1.LeaseList{}, func(page *coordinationv1.LeaseList) {
		for i := range page.Items {
			if l := &page.Items[i]; len(errs) < maxErrors && s.Clock.Since(renewTime(l, s.Clock.Now())) > leaseRetention {
				if err := s.deleteLease(ctx, l); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}, client.InNamespace(s.Namespace), client.HasLabels{v1.LabelAgent})
	if err != nil {
		return fmt.Errorf("listing leases in namespace %q: %w", s.Namespace, err)
	}
	return errors.Join(append(errs, s.deleteOldSlots(ctx))...)
}

// deleteOldSlots deletes the slots of budgets that have not counted for a while. The API server has set the times at which they were
// created.
func (s *Sweeper) deleteOldSlots(ctx context.Context) error {
	var errs []error
	err := kubeclient.EachPage(ctx, s.Reader, &coordinationv1.LeaseList{}, func(page *coordinationv1.LeaseList) {
		for i := range page.Items {
			l, period := &page.Items[i], time.Duration(0)
			if seconds := l.Spec.LeaseDurationSeconds; seconds != nil { // an agent has written it
				period = min(time.Duration(*seconds)*time.Second, maxPeriod)
			}
			if len(errs) == maxErrors || s.Clock.Since(l.CreationTimestamp.Time) <= period+slotRetention {
				continue
			}
			if _, err := kubeclient.DeleteUnchanged(ctx, s.Client, l); err != nil {
				errs = append(errs, fmt.Errorf("deleting slot %s/%s: %w", l.Namespace, l.Name, err))
			}
		}
	}, client.InNamespace(s.Namespace), client.HasLabels{v1.LabelRepairSlot})
	if err != nil {
		return fmt.Errorf("listing slots of budgets in namespace %q: %w", s.Namespace, err)
	}
	return errors.Join(errs...)
}

// renewTime is when an agent last renewed its Lease, by its own clock. This clock may be wrong: the Node object decides. A time in the
// future does not count, and the Lease is as old as its object.
func renewTime(l *coordinationv1.Lease, now time.Time) time.Time {
	if l.Spec.RenewTime == nil || l.Spec.RenewTime.After(now) {
		return l.CreationTimestamp.Time
	}
	return l.Spec.RenewTime.Time
}

// agentNode is the node whose agent the Lease is of. It is empty if the name and the label do not fit the holder, or if that is longer than
// the name of a node: an agent that was taken over may write a megabyte there.
func agentNode(l *coordinationv1.Lease) string {
	const longest = 253
	holder := l.Spec.HolderIdentity
	if holder == nil || len(*holder) > longest || l.Name != v1.AgentLeaseName(*holder) || l.Labels[v1.LabelAgent] != v1.NodeLabelValue(*holder) {
		return ""
	}
	return *holder
}

// deleteLease deletes a Lease, unless one of its names does not fit an agent, its node exists, or it has changed since it was read.
func (s *Sweeper) deleteLease(ctx context.Context, l *coordinationv1.Lease) error {
	node := agentNode(l)
	if node == "" {
		return nil
	}
	if absent, err := kubeclient.NodeAbsent(ctx, s.Reader, node); err != nil || !absent {
		return err
	}
	deleted, err := kubeclient.DeleteUnchanged(ctx, s.Client, l)
	if err != nil {
		return fmt.Errorf("deleting lease %s/%s: %w", l.Namespace, l.Name, err)
	}
	if !deleted {
		return nil
	}
	log := logr.FromContextOrDiscard(ctx)
	log.Info("Deleted the Lease of an agent whose node is gone", "lease", l.Name, "node", node, "renewed", renewTime(l, s.Clock.Now()))
	return nil
}
