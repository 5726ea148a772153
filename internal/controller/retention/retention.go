// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package retention deletes Diagnoses that ended long ago, or of which a namespace has too many on a node. It never
// deletes a Diagnosis that has not ended, and changes no node: the agents delete the files of a Diagnosis that no longer exists.
package retention

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// The permissions of the manager for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch;delete

// Keeper deletes in passes, the first one right after this process has become the leader.
type Keeper struct {
	// Client reads Diagnoses from a cache and deletes them.
	Client client.Client
	Clock  clock.WithTicker
	Limits Limits
	// Every is the time between two passes.
	Every time.Duration
}

// SetupWithManager adds the keeper to a manager.
func (k *Keeper) SetupWithManager(m manager.Manager) error {
	return m.Add(kubeclient.Passes{
		Clock: k.Clock, Interval: k.Every, Name: "retention", Failure: "Could not delete old Diagnoses", Pass: k.deleteOverLimits,
	})
}

// deleteOverLimits deletes the Diagnoses over the limits, MaxDeletions at most and the oldest first. It stops at the first
// error that another Diagnosis would meet too.
func (k *Keeper) deleteOverLimits(ctx context.Context) (err error) {
	began := k.Clock.Now()
	defer func() {
		passSeconds.Observe(k.Clock.Since(began).Seconds())
		if err != nil && ctx.Err() == nil {
			failuresCounter.Inc()
		}
	}()
	var all v1.DiagnosisList
	if err := k.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing diagnoses: %w", err)
	}
	counts := map[v1.DiagnosisPhase]int{}
	for i := range all.Items {
		counts[cmp.Or(all.Items[i].Status.Phase, v1.DiagnosisPending)]++
	}
	for _, phase := range phases {
		storedGauge.WithLabelValues(string(phase)).Set(float64(counts[phase]))
	}
	for _, c := range k.Limits.chooseDeletions(began, all.Items) {
		if _, err := kubeclient.DeleteUnchanged(ctx, k.Client, c.diagnosis); err != nil {
			return fmt.Errorf("deleting diagnosis %s/%s: %w", c.diagnosis.Namespace, c.diagnosis.Name, err)
		}
		deletionsCounter.WithLabelValues(c.cause).Inc()
	}
	return nil
}

// Limits bound the Diagnoses that are kept.
type Limits struct {
	// TTL is the time that a Diagnosis is kept after its end. 0: for ever.
	TTL time.Duration
	// PerNode bounds the Diagnoses of one namespace that have ended on one node, about the pods of one namespace. 0: no bound.
	PerNode int
	// Namespace is kubediag's own.
	Namespace string
	// MinimumAge is the time after its end in which PerNode does not delete a Diagnosis.
	MinimumAge time.Duration
	// MaxDeletions bounds one pass.
	MaxDeletions int
}
