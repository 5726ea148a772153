// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/metric/metrictest"
	"kubediag.org/kubediag/internal/sentinel"
)

// alertRules are those on metrics of the agents.
func alertRules(t *testing.T) []metrictest.Alert {
	t.Helper()
	return metrictest.Alerts(t, "../../config/alerts/kubediag.yaml", "kubediag")
}

// The metrics that the agent exposes are declared, and keep the conventions of Prometheus.
func TestMetrics(t *testing.T) {
	t.Parallel()
	l, counter := newExposed(t)
	l.Found(fault.Finding{Code: fault.HungMount}, time.Second)
	l.metrics.operations.WithLabelValues("HTTP", "Failed").Inc()
	l.metrics.durations.WithLabelValues("HTTP").Observe(1)
	l.metrics.diagnoses.WithLabelValues("Healed").Inc()
	exposed, err := counter.registry.Gather()
	must(t, err)
	if len(exposed) != len(Metrics()) {
		t.Errorf("%d metrics are exposed, %d declared", len(exposed), len(Metrics()))
	}
	for _, problem := range metrictest.Problems(exposed, Metrics()) {
		t.Error(problem)
	}
}

// newExposed makes the observer of an agent with all of its metrics.
func newExposed(t *testing.T) (*sentinelObserver, *metricReader) {
	t.Helper()
	o, _, counter := newTestObserver(t)
	l := &sentinelObserver{observer: o, mode: sentinel.Observe, log: logr.Discard()}
	whole := &coverage{watching: func() bool { return true }}
	must(t, errors.Join(l.register(counter.registry, func() sentinel.Status { return sentinel.Status{} }), whole.register(counter.registry)))
	return l, counter
}

// exposedMetrics are the metrics of an agent that has seen nothing yet.
func exposedMetrics(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	_, counter := newExposed(t)
	exposed, err := counter.registry.Gather()
	must(t, err)
	return exposed
}

func TestAlertsAreOnMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range exposedMetrics(t) {
		known[f.GetName()] = true
	}
	count := 0
	for _, r := range alertRules(t) {
		for _, name := range r.Metrics() {
			if count++; !known[name] {
				t.Errorf("alert %s is on %s, which the agent does not have", r.Alert, name)
			}
		}
		for _, code := range regexp.MustCompile(`\b[A-Z][A-Za-z]{6,}`).FindAllString(r.Expr, -1) {
			if _, ok := fault.Known().Lookup(fault.Code(code)); !ok {
				t.Errorf("alert %s speaks of %s, which is no fault", r.Alert, code)
			}
		}
	}
	if count < 4 {
		t.Errorf("%d names of metrics in the rules", count)
	}
}

// TestTheFirstIncreaseRaisesTheAlert: what an alert wants to see increase begins with 0, for every fault there is.
// Nothing was counted before, so a counter that is only made when it first counts is missing.
func TestTheFirstIncreaseRaisesTheAlert(t *testing.T) {
	t.Parallel()
	_, _, counter := newTestObserver(t)
	atFirst, increases := counter.readAll(t), 0
	for _, r := range alertRules(t) {
		for _, match := range regexp.MustCompile(`increase\((kubediag_[a-z_]+)\{(\w+)="(\w+)"\}`).FindAllStringSubmatch(strings.Replace(r.Expr, `fault!="",`, "", 1), -1) {
			increases++
			for _, entry := range fault.Known() {
				if len(entry.Actions) == 0 {
					continue // nothing repairs it
				}
				there := func(name string) bool {
					words := strings.Fields(name)
					return words[0] == match[1] && slices.Contains(words, match[2]+"="+match[3]) && slices.Contains(words, "fault="+string(entry.Code))
				}
				if !slices.ContainsFunc(slices.Collect(maps.Keys(atFirst)), there) {
					t.Errorf("alert %s does not see the first increase of %s for %s", r.Alert, match[1], entry.Code)
				}
			}
		}
	}
	if increases != 1 {
		t.Error("alerts on the increase of repairs of faults: want one")
	}
	for name, count := range atFirst {
		if strings.HasPrefix(name, "kubediag_repairs_total ") && count != 0 {
			t.Errorf("%s is %v at the start", name, count)
		}
	}
}

// TestNoAlertWhereNothingIsToBeWatched: a sentinel that is off reports nothing, neither that it does not see nor that
// all is well.
func TestNoAlertWhereNothingIsToBeWatched(t *testing.T) {
	t.Parallel()
	for _, mode := range []sentinel.Mode{sentinel.Off, sentinel.Observe, sentinel.Automatic} {
		o, _, counter := newTestObserver(t)
		l := &sentinelObserver{observer: o, mode: mode, log: logr.Discard()}
		must(t, l.register(counter.registry, func() sentinel.Status { return sentinel.Status{} }))
		_, watching := counter.readAll(t)["kubediag_sentinel_watching"]
		_, faults := counter.readAll(t)["kubediag_faults code="+string(fault.HungMount)]
		if want := mode != sentinel.Off; watching != want || faults != want {
			t.Errorf("%s: there is a count of faults: %v, and whether it watches: %v, want %v", mode, faults, watching, want)
		}
	}
}
