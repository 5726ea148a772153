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

// choice is a Diagnosis to delete and why.
type choice struct {
	diagnosis *v1.Diagnosis
	cause     string
}

// choose picks what is over the limits, oldest first.
func (l Limits) choose(now time.Time, all []v1.Diagnosis) []choice {
	var ended []*v1.Diagnosis
	for i := range all {
		if d := &all[i]; hasEnded(d) && d.DeletionTimestamp.IsZero() {
			ended = append(ended, d)
		}
	}
	slices.SortFunc(ended, func(a, b *v1.Diagnosis) int {
		return cmp.Or(endOf(a).Compare(endOf(b)), cmp.Compare(a.UID, b.UID))
	})
	left := map[group]int{}
	for _, d := range ended {
		left[groupOf(d)]++
	}
	var chosen []choice
	for _, d := range ended {
		if len(chosen) == l.MaxDeletions {
			break
		}
		g := groupOf(d)
		if cause := l.cause(now.Sub(endOf(d)), left[g]); cause != "" {
			chosen = append(chosen, choice{d, cause})
			left[g]--
		}
	}
	return chosen
}

// group is what a limit on the number counts together. The node is empty if no agent took the Diagnosis: its creator
// chose that name, and no agent has confirmed it. So one namespace never pushes out the records of another.
type group struct{ namespace, node string }

func groupOf(d *v1.Diagnosis) group {
	if d.Spec.Mode != v1.ModeRecord && !meta.IsStatusConditionTrue(d.Status.Conditions, v1.ConditionAccepted) {
		return group{namespace: d.Namespace}
	}
	return group{d.Namespace, d.Spec.NodeName}
}

// cause says why a Diagnosis goes that ended so long ago, when that many are left of its group; empty: it stays.
func (l Limits) cause(age time.Duration, left int) string {
	switch {
	case l.TTL > 0 && age > l.TTL:
		return causeAge
	case l.PerNode > 0 && left > l.PerNode && age > l.MinimumAge:
		return causeCount
	}
	return ""
}

// hasEnded reports whether a Diagnosis is over. A record is from the beginning.
func hasEnded(d *v1.Diagnosis) bool {
	return d.Spec.Mode == v1.ModeRecord || d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed
}

// endOf is when a Diagnosis ended. Those of older releases say only when they started, and not always that.
func endOf(d *v1.Diagnosis) time.Time {
	switch {
	case !d.Status.CompletionTime.IsZero():
		return d.Status.CompletionTime.Time
	case !d.Status.StartTime.IsZero():
		return d.Status.StartTime.Time
	}
	return d.CreationTimestamp.Time
}
