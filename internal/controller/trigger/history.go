// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// ownerIndex finds the Diagnoses that a Trigger made.
const ownerIndex = "trigger.owner"

// cleanupInterval is the time between two cleanups of the history of a Trigger, and maxDeletions bounds one cleanup.
const (
	cleanupInterval = time.Minute
	maxDeletions    = 200
)

func ownerNames(o client.Object) []string {
	if d, ok := o.(*v1.Diagnosis); ok {
		if owner := d.OwningTrigger(); owner != nil {
			return []string{string(owner.UID)}
		}
	}
	return nil
}

// deleteSurplus deletes the Diagnoses of a Trigger that are over its limits.
func (r *Reconciler) deleteSurplus(ctx context.Context, trigger *v1.Trigger, now time.Time) error {
	if last, ok := r.lastCleanup.Load(trigger.Name); ok && now.Sub(last.(time.Time)).Abs() < cleanupInterval {
		return nil
	}
	r.lastCleanup.Store(trigger.Name, now)
	var all v1.DiagnosisList
	err := r.Client.List(ctx, &all, client.InNamespace(r.Namespace), client.MatchingFields{ownerIndex: string(trigger.UID)},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("listing diagnoses of trigger %q: %w", trigger.Name, err)
	}
	for _, d := range surplusOf(trigger, all.Items, now) {
		if err := kubeclient.DeleteSame(ctx, r.Client, d); err != nil {
			return fmt.Errorf("deleting diagnosis %s/%s: %w", d.Namespace, d.Name, err)
		}
	}
	return nil
}

// surplusOf picks the Diagnoses over the limits, the oldest first. It keeps those that have not ended, and those of a cause that must not
// fire again yet: the name of the Diagnosis prevents a second one.
func surplusOf(trigger *v1.Trigger, all []v1.Diagnosis, now time.Time) []*v1.Diagnosis {
	type group struct {
		node  string
		phase v1.DiagnosisPhase
	}
	newest := make([]*v1.Diagnosis, 0, len(all))
	for i := range all {
		if all[i].Ended() {
			newest = append(newest, &all[i])
		}
	}
	slices.SortFunc(newest, func(a, b *v1.Diagnosis) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	kept := map[group]int{}
	var over []*v1.Diagnosis
	for _, d := range newest {
		g := group{d.Spec.NodeName, d.Status.Phase}
		noRepeat := now.Sub(d.CreationTimestamp.Time) <= trigger.Spec.RepeatInterval()
		if trigger.Spec.SourceTemplate.CronTemplate != nil {
			last := trigger.Status.LastScheduleTime
			noRepeat = trigger.Status.PendingNodes > 0 && last != nil && !d.CreationTimestamp.Time.Before(last.Time)
		}
		if noRepeat || kept[g] < trigger.Spec.HistoryLimit(d.Status.Phase) {
			kept[g]++
			continue
		}
		over = append(over, d)
	}
	slices.Reverse(over)
	return over[:min(len(over), maxDeletions)]
}
