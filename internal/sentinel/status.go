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
const silence = 2 * time.Minute

// Sight is what the sentinel sees now.
type Sight struct {
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

	at time.Time // when the watch said so, or was seen to move last; zero where there is no such watch
}

// Sight is what is seen now.
func (s *Sentinel) Sight() Sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.sight
	now.Present = map[fault.Code]int{}
	maps.Copy(now.Present, s.sight.Present)
	if orphans := len(s.faults[fromOrphans]); orphans > 0 {
		now.Present[fault.OrphanedPodVolumes] = orphans
	}
	if s.Volumes != nil {
		now.Watching = now.Watching && s.far.Watching
		now.Connections = s.far.Connections
		for code, n := range s.far.Present {
			now.Present[code] += n
		}
	}
	now.Stuck = cmp.Or(s.sight.stuck("binds"), s.far.stuck("volumes"))
	now.Watching = now.Watching && now.Stuck == ""
	return now
}

// stuck says so of the watch whose sight it is.
func (s *Sight) stuck(watch string) string {
	if s.at.IsZero() || time.Since(s.at) <= silence {
		return ""
	}
	return fmt.Sprintf("the watch over %s has said nothing since %s: what is reported is of then", watch, s.at.UTC().Format(time.RFC3339))
}

func (s *Sentinel) seeVolumes(now Sight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now.at = time.Now()
	s.far = now
}

// moves says that the watch over volumes is at work, and sees nothing new yet.
func (s *Sentinel) moves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.far.at = time.Now()
}

func (s *Sentinel) see(now Sight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now.at = time.Now()
	s.sight = now
}

// attend tells once of a watch that is stuck: that cannot tell so itself.
func (s *Sentinel) attend(ctx context.Context) {
	tick := time.NewTicker(retry)
	defer tick.Stop()
	for told := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.Sight().Stuck
		if now != "" && now != told {
			s.Observer.Trouble(errors.New(now))
		}
		told = now
	}
}
