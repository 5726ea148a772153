// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
)

var (
	deletions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubediag_retention_deletions_total", Help: "Diagnoses that were deleted, by cause: age or count.",
	}, []string{"cause"})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubediag_retention_failures_total", Help: "Passes that an error ended.",
	})
	passSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kubediag_retention_pass_duration_seconds", Help: "How long a pass over all Diagnoses took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	stored = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubediag_retention_diagnoses", Help: "Diagnoses that were there at the last pass, by phase.",
	}, []string{"phase"})
)

func init() { metrics.Registry.MustRegister(deletions, failures, passSeconds, stored) }

// phases are those that the API allows. A Diagnosis that has none yet counts as Pending.
var phases = []v1.DiagnosisPhase{
	v1.DiagnosisPending, v1.DiagnosisRunning, v1.DiagnosisSucceeded, v1.DiagnosisFailed, v1.DiagnosisUnknown,
}

func observe(all []v1.Diagnosis) {
	counts := map[v1.DiagnosisPhase]int{}
	for i := range all {
		phase := all[i].Status.Phase
		if phase == "" {
			phase = v1.DiagnosisPending
		}
		counts[phase]++
	}
	for _, phase := range phases {
		stored.WithLabelValues(string(phase)).Set(float64(counts[phase]))
	}
}
