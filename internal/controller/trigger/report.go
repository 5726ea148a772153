// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"cmp"
	"slices"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
)

// addProgress adds the events since the last write to the status. The list of drops has one entry for each reason.
func addProgress(t *v1.Trigger, p trigger.Progress) {
	s := &t.Status
	s.Matched += p.Tally.Matched
	s.Fired += p.Tally.Fired
	s.Repeated += p.Tally.Repeated
	if !p.Tally.LastFired.IsZero() {
		setTime(&s.LastFiredTime, p.Tally.LastFired)
		s.LastDiagnosis = p.Tally.LastDiagnosis
	}
	for _, drop := range p.Tally.Dropped {
		i := slices.IndexFunc(s.Dropped, func(d v1.TriggerDrop) bool { return d.Reason == drop.Reason })
		if i < 0 {
			s.Dropped = append(s.Dropped, drop)
			continue
		}
		drop.Count += s.Dropped[i].Count
		s.Dropped[i] = drop
	}
	slices.SortFunc(s.Dropped, func(a, b v1.TriggerDrop) int { return cmp.Compare(a.Reason, b.Reason) })
	// A run that this manager has not begun yet keeps its count: it is begun because of it.
	begun := p.Busy || s.LastScheduleTime == nil || p.Completed.Equal(s.LastScheduleTime.Time)
	if t.Spec.SourceTemplate.CronTemplate == nil || begun || s.PendingNodes == 0 {
		s.PendingNodes = p.Pending
	}
}
