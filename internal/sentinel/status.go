// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"kubediag.org/kubediag/internal/fault"
)

// stuckAfter is how long a watcher may be silent before it counts as stuck. Each sends a heartbeat at every tick,
// between two scans and between two repairs. One scan of volumes that all hang may take most of a minute.
const stuckAfter = 2 * time.Minute

// Status is the current state of the sentinel.
type Status struct {
	// Watching is false while part of the node is not watched: there is no kubelet, no volume can be probed, or a
	// watcher is stuck.
	Watching bool
	// Stuck names a watcher that is stuck, and since when. The rest of the status is of that time. It is empty if none
	// is stuck.
	Stuck string
	// Present counts the present faults by code.
	Present map[fault.Code]int
	// Binds counts the subPath binds of the node. Unwatched counts those without a watch, which are polled every
	// second.
	Binds, Unwatched int
	// Connections counts the FUSE connections of the node's volumes.
	Connections int

	updatedAt time.Time // the last report or heartbeat; zero if there is no such watcher
}

// Status returns the current status.
func (s *Sentinel) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	binds, volumes := &s.reportOf(fault.SearchSubPaths).status, &s.reportOf(fault.SearchVolumes).status
	status := *binds
	status.Present = map[fault.Code]int{}
	maps.Copy(status.Present, binds.Present)
	for search, r := range s.reports {
		if search == fault.SearchSubPaths || search == fault.SearchVolumes { // their watchers count
			continue
		}
		for _, f := range r.faults {
			status.Present[f.Code]++
		}
	}
	if s.Volumes != nil {
		status.Watching = status.Watching && volumes.Watching
		status.Connections = volumes.Connections
		for code, n := range volumes.Present {
			status.Present[code] += n
		}
	}
	status.Stuck = cmp.Or(binds.stuckMessage("binds"), volumes.stuckMessage("volumes"))
	status.Watching = status.Watching && status.Stuck == ""
	return status
}

// stuckMessage returns a message if the watcher of this status is stuck, and an empty string otherwise.
func (s *Status) stuckMessage(watch string) string {
	if s.updatedAt.IsZero() || time.Since(s.updatedAt) <= stuckAfter {
		return ""
	}
	return fmt.Sprintf("the watch over %s has not reported since %s: what it shows is of that time", watch, s.updatedAt.UTC().Format(time.RFC3339))
}

// setStatus sets the status of the binds or of the volumes.
func (s *Sentinel) setStatus(from fault.Search, status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status.updatedAt = time.Now()
	s.reportOf(from).status = status
}

// heartbeat records that the volume watcher is at work, although its status has not changed.
func (s *Sentinel) heartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reportOf(fault.SearchVolumes).status.updatedAt = time.Now()
}

// watchdog reports a stuck watcher to the observer once.
func (s *Sentinel) watchdog(ctx context.Context) {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for reported := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stuck := s.Status().Stuck
		if stuck != "" && stuck != reported {
			s.Observer.Trouble(errors.New(stuck))
		}
		reported = stuck
	}
}
