// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
)

// Causes of a deletion.
const (
	causeAge   = "age"
	causeCount = "count"
)

// planRetention is how long a plan that a person was asked about is kept once it was carried out.
const planRetention = time.Hour

// deletion is a Diagnosis to delete and why.
type deletion struct {
	diagnosis *v1.Diagnosis
	cause     string
}

// chooseDeletions picks the Diagnoses over the limits, oldest first.
func (l Limits) chooseDeletions(now time.Time, all []v1.Diagnosis) []deletion {
	var ended []*v1.Diagnosis
	for i := range all {
		d := &all[i]
		if over := d.Ended() || d.Spec.Mode == v1.ModeRecord; over && d.DeletionTimestamp.IsZero() { // a record is over from the beginning
			ended = append(ended, d)
		}
	}
	slices.SortFunc(ended, func(a, b *v1.Diagnosis) int {
		return cmp.Or(endTime(a).Compare(endTime(b)), cmp.Compare(a.UID, b.UID))
	})
	carriedOut := map[planKey]time.Time{}
	for _, d := range ended {
		if d.Spec.PlanHash != "" && d.Status.Outcome == v1.OutcomeHealed {
			carriedOut[planKey{d.Namespace, d.Spec.PlanHash}] = endTime(d) // the last one counts
		}
	}
	left := map[countGroup]int{}
	for _, d := range ended {
		left[l.countGroupOf(d)]++
	}
	var chosen []deletion
	for _, d := range ended {
		if len(chosen) == l.MaxDeletions {
			break
		}
		g := l.countGroupOf(d)
		age, cause := now.Sub(endTime(d)), ""
		switch {
		case l.TTL > 0 && age > l.TTL:
			cause = causeAge
		case isCarriedOut(d, carriedOut, now):
			cause = causeAge
		case l.PerNode > 0 && left[g] > l.PerNode && age > l.MinimumAge:
			cause = causeCount
		default:
			continue
		}
		chosen = append(chosen, deletion{d, cause})
		left[g]--
	}
	return chosen
}

// planKey is a plan of a namespace. The Diagnoses of another namespace never count.
type planKey struct{ namespace, hash string }

// isCarriedOut reports whether a Diagnosis is a plan that another one has carried out more than planRetention ago.
func isCarriedOut(d *v1.Diagnosis, carriedOut map[planKey]time.Time, now time.Time) bool {
	_, asked := d.Labels[v1.LabelPlan]
	if !asked || d.Spec.Mode != v1.ModePlan || d.Status.Plan == nil {
		return false
	}
	at, ok := carriedOut[planKey{d.Namespace, d.Status.Plan.Hash}]
	return ok && !at.Before(endTime(d)) && now.Sub(at) > planRetention
}

// countGroup is a group of Diagnoses for a limit on the number. The node is empty if no agent took the Diagnosis: its
// creator chose that name, and no agent has confirmed it. Diagnoses without a person are made in kubediag's own namespace, for the
// pods of all others. So the namespace of the pod counts, too, and one namespace never pushes out the records of another.
type countGroup struct{ namespace, node, podNamespace string }

func (l Limits) countGroupOf(d *v1.Diagnosis) countGroup {
	g := countGroup{namespace: d.Namespace}
	taken := d.Spec.Mode == v1.ModeRecord || meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted)
	if taken {
		g.node = d.Spec.NodeName
	}
	if taken || d.Namespace == l.Namespace { // in other namespaces, a tenant chooses the pod of a Diagnosis that is refused
		g.podNamespace = d.PodNamespace()
	}
	return g
}

// endTime is when a Diagnosis ended. A Diagnosis of an older release has the time of its start, or none.
func endTime(diagnosis *v1.Diagnosis) time.Time {
	switch {
	case !diagnosis.Status.CompletionTime.IsZero():
		return diagnosis.Status.CompletionTime.Time
	case !diagnosis.Status.StartTime.IsZero():
		return diagnosis.Status.StartTime.Time
	}
	return diagnosis.CreationTimestamp.Time
}
