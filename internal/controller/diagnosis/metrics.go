// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
)

var (
	bindings = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubediag_diagnosis_bindings_total", Help: "Diagnoses that were given to the agent of a node.",
	})
	refusals = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubediag_diagnosis_refusals_total", Help: "Diagnoses that the manager refused, by the reason in their conditions.",
	}, []string{"reason"})
	losses = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kubediag_diagnosis_agent_losses_total", Help: "Diagnoses that became Unknown because their agent was gone.",
	})
)

func init() { metrics.Registry.MustRegister(bindings, refusals, losses) }

// count counts what has been written.
func count(v *visit) {
	switch {
	case ended(v.was):
	case ended(v.is) && v.is.Status.Phase == v1.DiagnosisFailed:
		refusals.WithLabelValues(meta.FindStatusCondition(v.is.Status.Conditions, v1.ConditionComplete).Reason).Inc()
	case !bound(v.was) && bound(v.is):
		bindings.Inc()
	case v.was.Status.Phase != v.is.Status.Phase && v.is.Status.Phase == v1.DiagnosisUnknown:
		losses.Inc()
	}
}
