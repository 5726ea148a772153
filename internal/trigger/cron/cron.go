// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package cron reads the schedules of Triggers and says when they are due. It is pure: it holds no clock, no timer and no
// state. The reconciler of Triggers asks it, as the time of the last run stands in their status.
package cron

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the image holds no time zones

	"github.com/robfig/cron/v3"

	v1 "kubediag.org/kubediag/api/v1"
)

// Schedule is a schedule in its time zone.
type Schedule struct{ next cron.Schedule }

// Parse reads a schedule. Without a time zone it is in UTC.
func Parse(t *v1.CronTemplate) (Schedule, error) {
	zoned := strings.HasPrefix(t.Schedule, "TZ=") || strings.HasPrefix(t.Schedule, "CRON_TZ=")
	// cron/v3 cuts the zone off at the first space and panics if there is none.
	if zoned && !strings.Contains(t.Schedule, " ") {
		return Schedule{}, errors.New("a space and five fields must follow the time zone")
	}
	if zoned && t.TimeZone != "" {
		return Schedule{}, errors.New("must not name a time zone that timeZone names too")
	}
	next, err := cron.ParseStandard(t.Schedule)
	if err != nil {
		return Schedule{}, fmt.Errorf("parsing schedule: %w", err)
	}
	if fields, ok := next.(*cron.SpecSchedule); ok && !zoned {
		if strings.EqualFold(t.TimeZone, "Local") { // the zone of the machine
			return Schedule{}, fmt.Errorf("time zone %q is not the same everywhere", t.TimeZone)
		}
		if fields.Location, err = time.LoadLocation(t.TimeZone); err != nil {
			return Schedule{}, fmt.Errorf("loading time zone: %w", err)
		}
	}
	return Schedule{next}, nil
}

// Next returns the first time of the schedule after t. Zero: there is none in the next five years.
func (s Schedule) Next(t time.Time) time.Time { return s.next.Next(t.UTC()) }

// Latest returns the last time of the schedule after the last run and not after now, however many have been missed. Zero:
// there is none. A last run in the future, of a clock that has gone back since, counts as now.
func (s Schedule) Latest(last, now time.Time) time.Time {
	if last.After(now) {
		return time.Time{}
	}
	if every, ok := s.next.(cron.ConstantDelaySchedule); ok {
		return last.Add(now.Sub(last).Truncate(every.Delay)).Truncate(time.Second).UTC()
	}
	early, late := last, now
	if first := s.Next(early); first.IsZero() || first.After(now) {
		return time.Time{}
	}
	for late.Sub(early) > time.Second {
		middle := early.Add(late.Sub(early) / 2)
		if next := s.Next(middle); next.IsZero() || next.After(now) {
			late = middle
		} else {
			early = middle
		}
	}
	return s.Next(early)
}
