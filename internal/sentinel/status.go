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

// silence is for how long a watch may say nothing before it counts as stuck. Each says something at every beat, between two
// looks at all volumes and between two repairs; one look at volumes that all hang may take the better part of a minute.
const stuckAfter = 2 * time.Minute

// Status is what the sentinel sees now.
type Status struct {
	// Watching is false while it cannot see something: there is no kubelet, say, or no volume can be asked, or a watch is stuck.
	Watching bool
	// Stuck says which watch says nothing any more, and since when; then all else here is of that time. Empty: none.
	Stuck string
	// Present counts the faults by code.
	Present map[fault.Code]int
	// Binds are the subPath binds of the node, Unwatched those that no watch tells of: they are looked at every second
	// instead.
	Binds, Unwatched int
	// Connections are the FUSE connections of the node's volumes.
	Connections int

	updatedAt time.Time // when the watch said so, or was seen to move last; zero where there is no such watch
}

// Status is what is seen now.
func (s *Sentinel) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.bindStatus
	status.Present = map[fault.Code]int{}
	maps.Copy(status.Present, s.bindStatus.Present)
	if orphans := len(s.faults[fromOrphans]); orphans > 0 {
		status.Present[fault.OrphanedPodVolumes] = orphans
	}
	if s.Volumes != nil {
		status.Watching = status.Watching && s.volumeStatus.Watching
		status.Connections = s.volumeStatus.Connections
		for code, n := range s.volumeStatus.Present {
			status.Present[code] += n
		}
	}
	status.Stuck = cmp.Or(s.bindStatus.stuckMessage("binds"), s.volumeStatus.stuckMessage("volumes"))
	status.Watching = status.Watching && status.Stuck == ""
	return status
}

// stuckMessage says so of the watch whose sight it is.
func (s *Status) stuckMessage(watch string) string {
	if s.updatedAt.IsZero() || time.Since(s.updatedAt) <= stuckAfter {
		return ""
	}
	return fmt.Sprintf("the watch over %s has said nothing since %s: what is reported is of then", watch, s.updatedAt.UTC().Format(time.RFC3339))
}

func (s *Sentinel) setVolumeStatus(status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status.updatedAt = time.Now()
	s.volumeStatus = status
}

// heartbeat says that the watch over volumes is at work, and sees nothing new yet.
func (s *Sentinel) heartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumeStatus.updatedAt = time.Now()
}

func (s *Sentinel) setBindStatus(status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status.updatedAt = time.Now()
	s.bindStatus = status
}

// watchdog tells once of a watch that is stuck: that cannot tell so itself.
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
