// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/orphan"
)

// Orphans looks for the directories of pods that are gone: an *orphan.Inspector.
type Orphans interface {
	Survey(ctx context.Context) (*orphan.Survey, error)
}

// Nothing hurts sooner because of a directory that is left behind, and to prove that it is takes the API server.
const (
	orphansFirst = time.Minute
	orphansEvery = 10 * time.Minute
)

// count keeps count of the directories of pods that are gone, and tells of each once.
func (s *Sentinel) count(ctx context.Context) {
	told := map[string]bool{}
	for wait := orphansFirst; ; wait = orphansEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		survey, err := s.Orphans.Survey(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.Observer.Trouble(err)
			}
			continue
		}
		s.seeOrphans(survey.Findings(), told)
	}
}

func (s *Sentinel) seeOrphans(found []fault.Finding, told map[string]bool) {
	s.mu.Lock()
	s.orphans = len(found)
	s.mu.Unlock()
	now := map[string]bool{}
	for _, f := range found {
		now[f.Pod.UID] = true
		if !told[f.Pod.UID] {
			told[f.Pod.UID] = true
			s.Observer.Found(f, 0)
		}
	}
	for uid := range told {
		if !now[uid] {
			delete(told, uid)
		}
	}
}
