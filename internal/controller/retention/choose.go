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
