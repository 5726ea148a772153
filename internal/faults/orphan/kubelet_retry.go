// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
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

// pendingReason says why the kubelet may be going on trying to finish with a volume, for which it needs the record;
// empty: it is not. It changes nothing in the directory while it tries, so that age says nothing about this. Without
// the record it would fail for as long as its process lives, also once the driver is there.
//
// A kubelet that tries once may write a record again when it starts, into the same file. So the time at which the file
// was made counts. If it was after the start, the kubelet has mounted the volume itself, and goes on trying as any
// other.
func (a cleanupRetry) pendingReason(e Entry) string {
	may := fmt.Sprintf("the kubelet may be waiting for driver %q to finish with the volume, and needs the record for that", e.facts.Record.Driver)
	switch {
	case a.err != nil:
		return fmt.Sprintf("%s (%v): bring the driver back", may, a.err)
	case !a.onlyOnce:
		return may + ": bring the driver back; if that is gone for good, remove the record while the kubelet is stopped"
	case e.facts.Made.IsZero() || !e.facts.Made.Before(a.since):
		return may + ": bring the driver back; if that is gone for good, restart the kubelet"
	}
	return ""
}
