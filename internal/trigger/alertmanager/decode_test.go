// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/growthtest"
)

// Bodies as Alertmanager 0.25 and Prometheus 2.42 send them.
const (
	webhook = `{"receiver":"kubediag","status":"firing","alerts":[{"status":"firing","labels":{"alertname":"VolumeBroken","node":"n1"},` +
		`"annotations":{"summary":"s"},"startsAt":"2026-11-23T06:00:00.123Z","endsAt":"0001-01-01T00:00:00Z",` +
		`"generatorURL":"http://p/graph","fingerprint":"3f"},{"status":"resolved","labels":{"alertname":"Over"},"annotations":{},` +
		`"startsAt":"2026-11-23T05:00:00Z","endsAt":"2026-11-23T05:30:00Z","generatorURL":"","fingerprint":"4f"}],` +
		`"groupLabels":{},"commonLabels":{},"commonAnnotations":{},"externalURL":"http://a","version":"4","groupKey":"{}:{}","truncatedAlerts":0}`
	array = `[{"labels":{"alertname":"VolumeBroken","node":"n1"},"annotations":{"summary":"s"},"startsAt":"2026-11-23T06:00:00.123Z",` +
		`"endsAt":"2026-11-23T06:09:00Z","generatorURL":"http://p/graph"}]`
)

func TestDecode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body   string
		alerts int
		refuse bool
	}{
		"webhook":             {webhook, 2, false},
		"array":               {array, 1, false},
		"space around":        {"\n " + array + " \n", 1, false},
		"no alerts in it":     {`[]`, 0, false},
		"empty alert":         {`[{}]`, 1, false},
		"nothing":             {``, 0, true},
		"space":               {`  `, 0, true},
		"object":              {`{}`, 0, true},
		"alerts are null":     {`{"alerts":null}`, 0, true},
		"alerts are a number": {`{"alerts":3}`, 0, true},
		"string":              {`"x"`, 0, true},
		"cut off":             {array[:60], 0, true},
		"cut off at the end":  {array[:len(array)-1], 0, true},
		"more after it":       {array + array, 0, true},
		"label is a number":   {`[{"labels":{"a":1}}]`, 0, true},
		"alert is a string":   {`["x"]`, 0, true},
		"no time":             {`[{"startsAt":"yesterday"}]`, 0, true},
		"deep":                {`[` + strings.Repeat(`{"labels":`, 20000), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, err := decode([]byte(tc.body))
			if (err != nil) != tc.refuse || len(all) != tc.alerts {
				t.Errorf("%d alerts, %v", len(all), err)
			}
		})
	}
	if _, err := decode([]byte("[" + strings.Repeat("{},", maxAlerts) + "{}]")); !errors.Is(err, errTooMany) {
		t.Errorf("too many: %v", err)
	}
}

func TestFormsAreOneCause(t *testing.T) {
	t.Parallel()
	a, err := decode([]byte(webhook))
	b, err2 := decode([]byte(array))
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	keyOf := func(a alert) string {
		cause, err := causeOf(&v1.PrometheusAlertTemplate{}, signal{alert: &a})
		must(t, err)
		return cause.Key
	}
	if keyOf(a[0]) != keyOf(b[0]) || keyOf(a[0]) == keyOf(a[1]) {
		t.Error("the key of an alert depends on its form")
	}
	if diff := cmp.Diff(a[0].Labels, b[0].Labels); diff != "" || !a[0].StartsAt.Equal(b[0].StartsAt) {
		t.Errorf("labels (-webhook +array):\n%s", diff)
	}
	now := time.Date(2026, 11, 23, 6, 5, 0, 0, time.UTC)
	for name, got := range map[string]bool{
		"firing webhook": a[0].resolved(now), "array that ends later": b[0].resolved(now), "resolved webhook": !a[1].resolved(now),
		"array that has ended": !b[0].resolved(now.Add(time.Hour)),
	} {
		if got {
			t.Errorf("%s: wrong", name)
		}
	}
}

// FuzzDecode: no body brings the manager down, and none gives more alerts than are allowed.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{webhook, array, "[]", "{}", `[{"labels":{"a":"\u0000"}}]`, "[[[[", `{"alerts":[{"endsAt":""}]}`, `{"labels":{"a#":"#"}},`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		growthtest.Text(t, 1<<13, string(body), func(text string) {
			_, _ = decode([]byte(text))
			_, _ = decode([]byte("[" + text + "{}]"))
		})
		all, err := decode(body)
		if err != nil && all != nil || len(all) > maxAlerts {
			t.Errorf("%d alerts, %v", len(all), err)
		}
		for i := range all {
			c, _ := causeOf(&v1.PrometheusAlertTemplate{}, signal{&all[i], time.Time{}})
			if len(c.Annotations[v1.AnnotationPrometheusAlert]) > 4096 {
				t.Error("the excerpt of an alert is too long")
			}
			all[i].resolved(time.Time{})
		}
	})
}
