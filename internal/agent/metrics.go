// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"kubediag.org/kubediag/internal/fault"
)

// agentMetrics are the counts of the agent. Labels hold names of built-in processors, kinds, faults of the catalogue and
// outcomes, never names that users make up: their number is bounded.
type agentMetrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	repairs    *prometheus.CounterVec
	diagnoses  *prometheus.CounterVec
}

// countedActions are those that there are for each fault; a device that is idle is none. Their counts are there from
// the start: an alert on an increase does not see the first of a count that begins with it.
func countedActions(known fault.Catalogue) map[fault.Code][]fault.ActionKind {
	counted := map[fault.Code][]fault.ActionKind{"": {fault.Detach}}
	for _, e := range known {
		counted[e.Code] = e.Actions
	}
	return counted
}

// newMetrics registers the metrics of the agent of a node. running and abandoned are called when the metrics are read.
func newMetrics(registry prometheus.Registerer, node string, running func() int, abandoned func() int64) (*agentMetrics, error) {
	counters := &agentMetrics{
		operations: operationsTotal.CounterVec(), durations: operationDuration.HistogramVec(),
		repairs: repairsTotal.CounterVec(), diagnoses: diagnosesTotal.CounterVec(),
	}
	for code, kinds := range countedActions(fault.Known()) {
		for _, kind := range kinds {
			counters.repairs.WithLabelValues(string(code), string(kind), outcomeDone)
			counters.repairs.WithLabelValues(string(code), string(kind), outcomeFailed)
		}
	}
	return counters, register(registry,
		counters.operations, counters.durations, counters.repairs, counters.diagnoses,
		agentInfo.GaugeFunc(func() float64 { return 1 }, node),
		diagnosesRunning.GaugeFunc(func() float64 { return float64(running()) }),
		abandonedGoroutines.GaugeFunc(func() float64 { return float64(abandoned()) }),
	)
}

func register(registry prometheus.Registerer, all ...prometheus.Collector) error {
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}
