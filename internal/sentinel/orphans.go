// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/faults/orphan"
)

// Orphans looks for the directories of pods that are gone: an *orphan.Inspector.
type Orphans interface {
	Survey(ctx context.Context) (*orphan.Survey, error)
	// Gone tells which of these pods have no directory.
	Gone(ctx context.Context, uids []string) (map[string]bool, error)
}

// Nothing hurts sooner because of a directory that is left behind, and to prove that it is takes the API server. To see that
// one is no longer there takes a look at the disk.
const (
	orphanFirstDelay     = 30 * time.Second
	orphanSurveyInterval = 10 * time.Minute
	orphanCheckInterval  = time.Minute
	// orphanRetryDelay is how soon it is looked for them again where somebody could not be asked, and twice as long after each
	// further time, up to orphansEvery. Both are the longest: see spread.
	orphanRetryDelay = time.Minute
)

// jitter gives up to a fifth less time: all agents of a cluster may have begun at once, and are not to go on so.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5) }

// watchOrphans keeps count of the directories of pods that are gone, and tells of each once.
func (s *Sentinel) watchOrphans(ctx context.Context) {
	counted, surveyed := map[string]*Fault{}, false // those that are counted, by the UID of the pod
	next, retryDelay := time.Now().Add(orphanFirstDelay), orphanRetryDelay
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(time.Until(next), orphanCheckInterval)):
		}
		var err error
		if start := time.Now(); start.Before(next) {
			err = s.removeDeleted(ctx, counted)
		} else if err = s.surveyOrphans(ctx, counted); err == nil {
			surveyed = true
			next, retryDelay = start.Add(jitter(orphanSurveyInterval)), orphanRetryDelay
		} else {
			next, retryDelay = time.Now().Add(jitter(retryDelay)), min(2*retryDelay, orphanSurveyInterval)
		}
		if err != nil && ctx.Err() == nil {
			s.Observer.Trouble(err)
		}
		if surveyed {
			s.publish(fromOrphans, slices.Collect(maps.Values(counted)))
		}
	}
}

// surveyOrphans looks for all of them. Where somebody could not be asked, those that are counted stay so.
func (s *Sentinel) surveyOrphans(ctx context.Context, counted map[string]*Fault) error {
	survey, err := s.Orphans.Survey(ctx)
	if err == nil && len(survey.Unasked) > 0 { // then nothing is proven of those that are counted, and nothing disproven
		err = fmt.Errorf("look for directories of pods that are gone: %s", strings.Join(survey.Unasked, "; "))
	}
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, f := range survey.Findings() {
		found[f.Pod.UID] = true
		if counted[f.Pod.UID] == nil {
			s.Observer.Found(f, 0)
		}
		counted[f.Pod.UID] = &Fault{Finding: f}
	}
	if len(survey.Skipped) > 0 { // others may still be there; forget finds out
		s.Observer.Trouble(fmt.Errorf("look for directories of pods that are gone: not looked at: %s", strings.Join(survey.Skipped, "; ")))
		return nil
	}
	for uid := range counted {
		if !found[uid] {
			delete(counted, uid)
		}
	}
	return nil
}

// removeDeleted forgets those that have been removed since.
func (s *Sentinel) removeDeleted(ctx context.Context, counted map[string]*Fault) error {
	if len(counted) == 0 {
		return nil
	}
	gone, err := s.Orphans.Gone(ctx, slices.Collect(maps.Keys(counted)))
	if err != nil {
		return err
	}
	for uid := range gone {
		delete(counted, uid)
	}
	return nil
}
