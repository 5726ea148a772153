// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package metric_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/metric/metrictest"
)

var (
	opened = metric.Declaration{
		Name: "kubediag_doors_opened_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "side", Values: "`left`, `right`"}},
		Help: "Doors that were opened.", More: "[Doors](doors.md)",
	}
	open  = metric.Declaration{Name: "kubediag_doors_open", Kind: metric.Gauge, Help: "Doors that are open."}
	delay = metric.Declaration{Name: "kubediag_door_delay_seconds", Kind: metric.Histogram, Help: "Time that a door takes.", Buckets: []float64{1}}
)

func TestProblems(t *testing.T) {
	t.Parallel()
	counts := opened.CounterVec()
	counts.WithLabelValues("left").Inc()
	bad := prometheus.NewCounter(prometheus.CounterOpts{Name: "kubediag_doors_milliseconds", Help: "Bad."})
	for name, tc := range map[string]struct {
		metrics  []prometheus.Collector
		declared []metric.Declaration
		want     []string
	}{
		"good": {[]prometheus.Collector{counts, open.Gauge(), delay.Histogram()}, []metric.Declaration{opened, open, delay}, nil},
		"not declared": {
			[]prometheus.Collector{open.Gauge()}, nil, []string{"kubediag_doors_open is not declared"},
		},
		"another kind, other labels, another help": {
			[]prometheus.Collector{counts},
			[]metric.Declaration{{Name: opened.Name, Kind: metric.Gauge, Help: "Doors."}},
			[]string{"is a counter, declared as a gauge", "has the help", "has the labels"},
		},
		"conventions": {
			[]prometheus.Collector{bad}, []metric.Declaration{{Name: "kubediag_doors_milliseconds", Kind: metric.Counter, Help: "Bad."}},
			[]string{"_total", "seconds"},
		},
		"of a library": {[]prometheus.Collector{prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_x"})}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			registry.MustRegister(tc.metrics...)
			exposed, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(metrictest.Problems(exposed, tc.declared), "\n")
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("problems = %s, want %q in them", got, want)
				}
			}
			if len(tc.want) == 0 && got != "" {
				t.Errorf("problems = %s", got)
			}
		})
	}
}
