// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/trigger"
	"kubediag.org/kubediag/internal/trigger/cron"
)

// nextRun reports whether a run of a Trigger with a schedule is due, and when to check again. The run is to be offered
// after the status has been written: a manager that ends in between finds pendingNodes and begins the run again, and
// the names of the Diagnoses that it made already are taken.
func (r *Reconciler) nextRun(t *v1.Trigger, now time.Time) (run *trigger.Cause, again time.Duration, err error) {
	template := t.Spec.SourceTemplate.CronTemplate
	if template == nil {
		return nil, r.Every, nil
	}
	s, err := cron.Parse(template)
	if err != nil {
		return nil, 0, fmt.Errorf("reading schedule of trigger %q: %w", t.Name, err)
	}
	again = min(r.Every, max(s.Next(now).Sub(now), 10*time.Millisecond))
	progress := r.Dispatcher.Progress(t.Name)
	if progress.Busy {
		return nil, again, nil
	}
	last := t.CreationTimestamp.Time
	if t.Status.LastScheduleTime != nil {
		last = t.Status.LastScheduleTime.Time
		if progress.Completed.Equal(last) {
			t.Status.PendingNodes = 0
		} else if t.Status.PendingNodes > 0 {
			return causeOf(t, last), again, nil // an earlier manager did not finish it
		}
	}
	if last.After(now) { // the clock has gone back
		setTime(&t.Status.LastScheduleTime, now)
		return nil, again, nil
	}
	due := s.Latest(last, now)
	if due.IsZero() || !due.After(last) {
		return nil, again, nil
	}
	setTime(&t.Status.LastScheduleTime, due)
	if late := template.StartingDeadlineSeconds; late != nil && now.Sub(due) > time.Duration(*late)*time.Second {
		r.Dispatcher.Reject(t.Name, trigger.KindCron, trigger.Reject(v1.ReasonDeadlineMissed,
			"the run of %s is %s late", due.UTC().Format(time.RFC3339), now.Sub(due).Truncate(time.Second)))
		return nil, again, nil
	}
	t.Status.PendingNodes = 1
	return causeOf(t, due), again, nil
}

// causeOf returns the cause of a run: each time of the schedule has its own.
func causeOf(t *v1.Trigger, at time.Time) *trigger.Cause {
	template := t.Spec.SourceTemplate.CronTemplate
	when := at.UTC().Format(time.RFC3339)
	return &trigger.Cause{
		Kind: trigger.KindCron, Key: when, Time: at, Scheduled: at, Policy: template.ConcurrencyPolicy,
		Annotations: map[string]string{v1.AnnotationCron: template.Schedule, v1.AnnotationScheduledTime: when},
	}
}

func setTime(field **metav1.Time, at time.Time) {
	t := metav1.NewTime(at.Truncate(time.Second))
	*field = &t
}
