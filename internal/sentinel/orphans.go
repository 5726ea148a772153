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
	orphansFirst = 30 * time.Second
	orphansEvery = 10 * time.Minute
	orphansGone  = time.Minute
	// orphansAgain is how soon it is looked for them again where somebody could not be asked, and twice as long after each
	// further time, up to orphansEvery. Both are the longest: see spread.
	orphansAgain = time.Minute
)

// spread gives up to a fifth less time: all agents of a cluster may have begun at once, and are not to go on so.
func spread(d time.Duration) time.Duration { return d - rand.N(d/5) }

// count keeps count of the directories of pods that are gone, and tells of each once.
func (s *Sentinel) count(ctx context.Context) {
	told, looked := map[string]*Fault{}, false // those that are counted, by the UID of the pod
	next, again := time.Now().Add(orphansFirst), orphansAgain
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(time.Until(next), orphansGone)):
		}
		var err error
		if began := time.Now(); began.Before(next) {
			err = s.forget(ctx, told)
		} else if err = s.seek(ctx, told); err == nil {
			looked = true
			next, again = began.Add(spread(orphansEvery)), orphansAgain
		} else {
			next, again = time.Now().Add(spread(again)), min(2*again, orphansEvery)
		}
		if err != nil && ctx.Err() == nil {
			s.Observer.Trouble(err)
		}
		if looked {
			s.publish(fromOrphans, slices.Collect(maps.Values(told)))
		}
	}
}

// seek looks for all of them. Where somebody could not be asked, those that are counted stay so.
func (s *Sentinel) seek(ctx context.Context, told map[string]*Fault) error {
	survey, err := s.Orphans.Survey(ctx)
	if err == nil && len(survey.Unasked) > 0 { // then nothing is proven of those that are counted, and nothing disproven
		err = fmt.Errorf("look for directories of pods that are gone: %s", strings.Join(survey.Unasked, "; "))
	}
	if err != nil {
		return err
	}
	now := map[string]bool{}
	for _, f := range survey.Findings() {
		now[f.Pod.UID] = true
		if told[f.Pod.UID] == nil {
			s.Observer.Found(f, 0)
		}
		told[f.Pod.UID] = &Fault{Finding: f}
	}
	if len(survey.Skipped) > 0 { // others may still be there; forget finds out
		s.Observer.Trouble(fmt.Errorf("look for directories of pods that are gone: not looked at: %s", strings.Join(survey.Skipped, "; ")))
		return nil
	}
	for uid := range told {
		if !now[uid] {
			delete(told, uid)
		}
	}
	return nil
}

// forget forgets those that have been removed since.
func (s *Sentinel) forget(ctx context.Context, told map[string]*Fault) error {
	if len(told) == 0 {
		return nil
	}
	gone, err := s.Orphans.Gone(ctx, slices.Collect(maps.Keys(told)))
	if err != nil {
		return err
	}
	for uid := range gone {
		delete(told, uid)
	}
	return nil
}
