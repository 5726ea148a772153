// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"slices"

	"kubediag.org/kubediag/internal/controller/diagnosis"
	"kubediag.org/kubediag/internal/controller/lease"
	"kubediag.org/kubediag/internal/controller/mountfault"
	"kubediag.org/kubediag/internal/controller/recoverypolicy"
	"kubediag.org/kubediag/internal/controller/retention"
	"kubediag.org/kubediag/internal/metric"
	"kubediag.org/kubediag/internal/trigger"
	"kubediag.org/kubediag/internal/trigger/alertmanager"
)

// Metrics declares the metrics of the manager, without those of the libraries.
func Metrics() []metric.Declaration {
	return slices.Concat(
		diagnosis.Metrics(), lease.Metrics(), mountfault.Metrics(), recoverypolicy.Metrics(), retention.Metrics(), trigger.Metrics(), alertmanager.Metrics(),
	)
}
