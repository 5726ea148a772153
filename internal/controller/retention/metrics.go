// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/metric"
)

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration {
	return []metric.Declaration{deletionsTotal, failuresTotal, passDuration, storedDiagnoses}
}

var (
	deletionsTotal = metric.Declaration{
		Name: "kubediag_retention_deletions_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "cause", Values: "`age`, `count`"}},
		Help: "Diagnoses that the retention has deleted.",
	}
	failuresTotal = metric.Declaration{
		Name: "kubediag_retention_failures_total", Kind: metric.Counter, Help: "Passes of the retention that an error ended.",
	}
	passDuration = metric.Declaration{
		Name: "kubediag_retention_pass_duration_seconds", Kind: metric.Histogram, Help: "Duration of a pass of the retention.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	}
	storedDiagnoses = metric.Declaration{
		Name: "kubediag_retention_diagnoses", Kind: metric.Gauge, Labels: []metric.Label{{Name: "phase"}},
		Help: "Diagnoses at the last pass of the retention.",
	}

	deletionsCounter, failuresCounter, passSeconds, storedGauge = deletionsTotal.CounterVec(), failuresTotal.Counter(), passDuration.Histogram(), storedDiagnoses.GaugeVec()
)

func init() {
	metrics.Registry.MustRegister(deletionsCounter, failuresCounter, passSeconds, storedGauge)
}

// phases are the phases of the API. A Diagnosis without a phase counts as Pending.
var phases = []v1.DiagnosisPhase{
	v1.DiagnosisPending, v1.DiagnosisRunning, v1.DiagnosisSucceeded, v1.DiagnosisFailed, v1.DiagnosisUnknown,
}
