// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/metric"
)

// Results of a cause that are no reasons of a drop.
const (
	resultFired    = "Fired"
	resultRepeated = "Repeated"
)

// Metrics declares the metrics of this package.
func Metrics() []metric.Declaration {
	return []metric.Declaration{causesTotal, signalsTotal, waitingCauses}
}

var (
	causesTotal = metric.Declaration{
		Name: "kubediag_trigger_causes_total", Kind: metric.Counter,
		Labels: []metric.Label{
			{Name: "source", Values: "`event`, `alert`, `cron`, `mountfault`"},
			{Name: "result", Values: "`Fired`, `Repeated`, or the [reason](trigger.md#status) of the drop"},
		},
		Help: "Matches of Triggers, by result.",
	}
	signalsTotal = metric.Declaration{
		Name: "kubediag_trigger_signals_total", Kind: metric.Counter,
		Labels: []metric.Label{{Name: "source", Values: "`event`, `alert`, `mountfault`"}},
		Help:   "Events, alerts and MountFaults that were compared with Triggers.",
	}
	waitingCauses = metric.Declaration{
		Name: "kubediag_trigger_waiting_causes", Kind: metric.Gauge, Help: "Causes that wait for the turn of their Diagnoses.",
	}

	results, signals, waiting = causesTotal.CounterVec(), signalsTotal.CounterVec(), waitingCauses.Gauge()
)

// init begins the counts that alerts are on with 0: an alert on an increase does not see a count begin.
func init() {
	for _, kind := range []Kind{KindEvent, KindAlert, KindCron, KindMountFault} {
		for _, result := range []string{resultFired, resultRepeated, v1.ReasonQueueFull, v1.ReasonAPIError} {
			results.WithLabelValues(string(kind), result)
		}
	}
	metrics.Registry.MustRegister(results, signals, waiting)
}

// Seen counts a signal of a source.
func Seen(kind Kind) { signals.WithLabelValues(string(kind)).Inc() }
