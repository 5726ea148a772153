// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cron

import (
	"testing"
	"time"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/growthtest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		schedule, zone string
		ok             bool
	}{
		"five fields":            {"*/5 0-6 1,15 * MON", "", true},
		"descriptor":             {"@hourly", "", true},
		"every":                  {"@every 90m", "", true},
		"time zone":              {"CRON_TZ=UTC 0 3 * * *", "", true},
		"zone of its own":        {"0 3 * * *", "Europe/Berlin", true},
		"two zones":              {"CRON_TZ=UTC 0 3 * * *", "Europe/Berlin", false},
		"zone of the machine":    {"0 3 * * *", "Local", false},
		"zone unknown":           {"0 3 * * *", "Nowhere/Land", false},
		"zone out of its place":  {"0 3 * * *", "../../etc/passwd", false},
		"empty":                  {"", "", false},
		"six fields":             {"0 0 3 * * *", "", false},
		"out of range":           {"61 * * * *", "", false},
		"words":                  {"every night", "", false},
		"zone only":              {"TZ=UTC", "", false},
		"zone without its end":   {"CRON_TZ=", "", false},
		"zone that there is not": {"TZ=Nowhere/Land 0 3 * * *", "", false},
		"descriptor unknown":     {"@sometimes", "", false},
		"every nonsense":         {"@every x", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse(&v1.CronTemplate{Schedule: tc.schedule, TimeZone: tc.zone}); (err == nil) != tc.ok {
				t.Errorf("error = %v, want none: %t", err, tc.ok)
			}
		})
	}
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	got, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestLatest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		schedule, zone, last, now string
		want                      string // empty: not due
	}{
		"not yet":                      {"0 3 * * *", "", "2026-11-23T03:00:00Z", "2026-11-24T02:59:59Z", ""},
		"just now":                     {"0 3 * * *", "", "2026-11-23T03:00:00Z", "2026-11-24T03:00:00Z", "2026-11-24T03:00:00Z"},
		"defect 27: hundreds missed":   {"* * * * *", "", "2026-11-20T03:00:00Z", "2026-11-23T03:00:30Z", "2026-11-23T03:00:00Z"},
		"years missed":                 {"*/7 * * * *", "", "1999-01-01T00:00:00Z", "2026-11-23T03:00:30Z", "2026-11-23T03:00:00Z"},
		"one a year":                   {"0 0 29 2 *", "", "2024-03-01T00:00:00Z", "2028-03-05T00:00:00Z", "2028-02-29T00:00:00Z"},
		"a day that there is not":      {"0 0 31 2 *", "", "1999-01-01T00:00:00Z", "2026-11-23T03:00:30Z", ""},
		"in its zone":                  {"0 3 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T01:00:00Z", "2026-07-01T01:00:00Z"},
		"the hour that is left out":    {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z", ""},
		"the hour that comes twice":    {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T00:30:00Z"},
		"the clock has gone back":      {"* * * * *", "", "2027-01-01T00:00:00Z", "2026-11-23T03:00:30Z", ""},
		"the clock has jumped a year":  {"0 3 * * *", "", "2026-11-23T03:00:00Z", "2027-11-23T12:00:00Z", "2027-11-23T03:00:00Z"},
		"every, from the last run":     {"@every 90m", "", "2026-11-23T03:10:00Z", "2026-11-23T06:11:00Z", "2026-11-23T06:10:00Z"},
		"every, not yet":               {"@every 90m", "", "2026-11-23T03:10:00Z", "2026-11-23T04:39:59Z", ""},
		"every, of less than a second": {"@every 1ms", "", "2026-11-23T03:10:00Z", "2026-11-23T03:10:03Z", "2026-11-23T03:10:03Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Parse(&v1.CronTemplate{Schedule: tc.schedule, TimeZone: tc.zone})
			if err != nil {
				t.Fatal(err)
			}
			last := at(t, tc.last)
			got := s.Latest(last, at(t, tc.now))
			switch {
			case tc.want == "" && got.After(last):
				t.Errorf("due at %s, want not at all", got)
			case tc.want != "" && !got.Equal(at(t, tc.want)):
				t.Errorf("due at %s, want %s", got, tc.want)
			}
		})
	}
}

// FuzzLatest: no schedule and no clock brings the manager down, and a run is never due before its time.
func FuzzLatest(f *testing.F) {
	for _, seed := range []string{"* * * * *", "TZ=", "CRON_TZ=UTC * * * * *", "@every 1s", "1-2/3,4 * ? L W", "0 0 31 2 *"} {
		f.Add(seed, "Europe/Berlin", int64(1e9), int64(1e6))
	}
	f.Fuzz(func(t *testing.T, schedule, zone string, unix, passed int64) {
		s, err := Parse(&v1.CronTemplate{Schedule: schedule, TimeZone: zone})
		if err != nil {
			return
		}
		last := time.Unix(unix%(1<<33), 0)
		now := last.Add(time.Duration(passed % (1 << 55)))
		if due := s.Latest(last, now); due.After(now) {
			t.Errorf("due at %s, which is after %s", due, now)
		}
	})
}

// FuzzScheduleGrows holds that no schedule makes work that grows with the square of its length.
func FuzzScheduleGrows(f *testing.F) {
	for _, part := range []string{"1,", "*/1,", "0-59/2,", "MON,", "* ", "TZ=", "@every 1h", "1h", "/", "-", "?", "0"} {
		for _, around := range []string{"", "* * * * ", "TZ=UTC ", "@every "} {
			f.Add(around, part, "")
			f.Add(around, part, "1 * * * *")
		}
	}
	f.Fuzz(func(t *testing.T, before, part, after string) {
		growthtest.Text(t, 1<<13, part, func(text string) {
			s, err := Parse(&v1.CronTemplate{Schedule: before + text + after})
			if err == nil {
				s.Latest(time.Unix(1_000_000_000, 0), time.Unix(1_100_000_000, 0))
			}
		})
	})
}
