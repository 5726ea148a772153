// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/metric"
)

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration {
	return []metric.Declaration{bindingsTotal, refusalsTotal, lossesTotal}
}

var (
	bindingsTotal = metric.Declaration{
		Name: "kubediag_diagnosis_bindings_total", Kind: metric.Counter, Help: "Diagnoses that were bound to a node.",
	}
	refusalsTotal = metric.Declaration{
		Name: "kubediag_diagnosis_refusals_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "reason"}},
		Help: "Diagnoses that were refused, by the reason in their conditions.",
	}
	lossesTotal = metric.Declaration{
		Name: "kubediag_diagnosis_agent_losses_total", Kind: metric.Counter,
		Help: "Diagnoses that became Unknown because their agent was gone.",
	}

	bindings, refusals, losses = bindingsTotal.Counter(), refusalsTotal.CounterVec(), lossesTotal.Counter()
)

func init() { metrics.Registry.MustRegister(bindings, refusals, losses) }

// countWritten counts a Diagnosis by the change that was written.
func countWritten(scope *reconcileScope) {
	switch {
	case scope.before.Ended():
	case scope.diagnosis.Ended() && scope.diagnosis.Status.Phase == v1.DiagnosisFailed:
		refusals.WithLabelValues(meta.FindStatusCondition(scope.diagnosis.Status.Conditions, v1.ConditionComplete).Reason).Inc()
	case !isBound(scope.before) && isBound(scope.diagnosis):
		bindings.Inc()
	case scope.before.Status.Phase != scope.diagnosis.Status.Phase && scope.diagnosis.Status.Phase == v1.DiagnosisUnknown:
		losses.Inc()
	}
}
