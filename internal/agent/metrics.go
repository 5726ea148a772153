// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"kubediag.org/kubediag/internal/fault"
)

// metrics are what the agent counts. Labels hold names of built-in processors, kinds, faults of the catalogue and
// outcomes, never names that users make up: their number is bounded.
type metrics struct {
	operations *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	repairs    *prometheus.CounterVec
	diagnoses  *prometheus.CounterVec
}

// gauges are read when the metrics are.
type gauges struct {
	running   func() int
	abandoned func() int64
}

// actions are those that there are for each fault; a device that is idle is none. Their counts are there from the start: an
// alert on an increase does not see the first of a count that begins with it.
var actions = map[fault.Code][]fault.ActionKind{
	"":                        {fault.Detach},
	fault.DeletedVolumeSource: {fault.Replace, fault.RemoveContainerRecord, fault.Evict},
	fault.DisconnectedFUSE:    {fault.Replace, fault.RemoveContainerRecord, fault.Evict},
	fault.HeldDevice:          {fault.Unmount, fault.Detach},
	fault.HungMount:           {fault.Abort, fault.Replace, fault.RemoveContainerRecord, fault.Evict},
	fault.MissingBindSource:   {fault.Evict},
	fault.OrphanedPodVolumes:  {fault.RemoveDirectory, fault.RemoveFile},
	fault.SourceTypeMismatch:  {fault.Evict},
	fault.StaleFileHandle:     {fault.Replace, fault.RemoveContainerRecord, fault.Evict},
	fault.StaleSubPath:        {fault.Unmount, fault.RemoveContainerRecord},
}

// newMetrics registers the metrics of the agent of a node.
func newMetrics(registry prometheus.Registerer, node string, g gauges) (*metrics, error) {
	m := &metrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubediag_operations_total",
			Help: "Operations that ended, by processor (the name of a built-in one, or HTTP, or Script) and outcome.",
		}, []string{"processor", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubediag_operation_duration_seconds",
			Help:    "Time from the first attempt of an operation to the end of the last.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 15, 60, 300, 1800},
		}, []string{"processor"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubediag_repairs_total",
			Help: "Actions of repairs, by the fault that they are for, what they did, and outcome.",
		}, []string{"fault", "action", "outcome"}),
		diagnoses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubediag_diagnoses_total",
			Help: "Diagnoses that ended, by outcome.",
		}, []string{"outcome"}),
	}
	for code, kinds := range actions {
		for _, kind := range kinds {
			m.repairs.WithLabelValues(string(code), string(kind), outcomeDone)
			m.repairs.WithLabelValues(string(code), string(kind), outcomeFailed)
		}
	}
	for _, c := range []prometheus.Collector{
		m.operations, m.durations, m.repairs, m.diagnoses,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "kubediag_agent_info",
			Help:        "1. Its label says which node the agent is on, for joins.",
			ConstLabels: prometheus.Labels{"node": node},
		}, func() float64 { return 1 }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubediag_diagnoses_running",
			Help: "Diagnoses that are running.",
		}, func() float64 { return float64(g.running()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubediag_abandoned_goroutines",
			Help: "Processors that did not return when their time was up and are still at work.",
		}, func() float64 { return float64(g.abandoned()) }),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return m, nil
}
