// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"time"

	"kubediag.org/kubediag/internal/kubelet"
)

// cleanupRetry is what is known of how the kubelet finishes with the volumes of pods that are gone.
type cleanupRetry struct {
	onlyOnce bool      // whether it tries once with those that it finds when it starts, and not mounted
	since    time.Time // when it has started
	err      error     // why that is not known
}

func cleanupRetryOf(node *kubelet.Node) (a cleanupRetry) {
	if a.onlyOnce, a.err = node.RetriesCleanupOnce(); a.err == nil && a.onlyOnce {
		a.since, a.err = node.Started()
	}
	return a
}
