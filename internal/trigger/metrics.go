// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Results of a cause that are no reasons of a drop.
const (
	resultFired    = "Fired"
	resultRepeated = "Repeated"
)

var (
	results = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubediag_trigger_causes_total", Help: "What Triggers matched, by source and by what came of it: Fired, Repeated or why it was dropped.",
	}, []string{"source", "result"})
	signals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubediag_trigger_signals_total", Help: "Signals that were compared with Triggers, by source.",
	}, []string{"source"})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubediag_trigger_waiting_causes", Help: "Causes that wait for the turn of their Diagnoses.",
	})
)

func init() { metrics.Registry.MustRegister(results, signals, waiting) }

// Seen counts a signal of a source.
func Seen(kind Kind) { signals.WithLabelValues(string(kind)).Inc() }
