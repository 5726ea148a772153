// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
)

// Orphans finds the directories of pods that are gone: an *orphan.Inspector.
type Orphans interface {
	Survey(ctx context.Context) (*orphan.Survey, error)
	// Gone returns which of these pods have no directory.
	GoneDirectories(ctx context.Context, uids []string) (map[string]bool, error)
}

// The time between two surveys, and the time between two checks of the disk. A directory that is left
// behind does no harm at once. A survey asks the API server; a check only reads the disk.
const (
	orphanSurveyInterval = 10 * time.Minute
	orphanCheckInterval  = time.Minute
)

// orphanBackoff is the back-off of surveys that could not ask every source. Its steps are upper bounds: see jitter.
var orphanBackoff = wait.Backoff{Duration: time.Minute, Factor: 2, Cap: orphanSurveyInterval, Steps: math.MaxInt}

// jitter shortens a delay by up to a fifth, so that agents that started at the same time do not stay in step.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5) }

// watchOrphans counts the directories of pods that are gone, and notifies the observer of each once.
func (s *Sentinel) watchOrphans(ctx context.Context) {
	counted, surveyed := map[string]*Fault{}, false // by the UID of the pod
	next, backoff := time.Now().Add(firstDelay), orphanBackoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(time.Until(next), orphanCheckInterval)):
		}
		var err error
		if start := time.Now(); start.Before(next) {
			if len(counted) > 0 {
				var gone map[string]bool // whose directories were deleted
				gone, err = s.Orphans.GoneDirectories(ctx, slices.Collect(maps.Keys(counted)))
				if err == nil {
					maps.DeleteFunc(counted, func(uid string, _ *Fault) bool { _, deleted := gone[uid]; return deleted })
				}
			}
		} else if err = s.surveyOrphans(ctx, counted); err == nil {
			surveyed = true
			next, backoff = start.Add(jitter(orphanSurveyInterval)), orphanBackoff
		} else {
			next = time.Now().Add(jitter(backoff.Step()))
		}
		if err != nil && ctx.Err() == nil {
			s.Observer.Trouble(err)
		}
		if surveyed {
			s.publish(fault.SearchOrphans, slices.Collect(maps.Values(counted)))
		}
	}
}

// surveyOrphans searches for all of them. If a source could not be asked, the count stays as it is.
func (s *Sentinel) surveyOrphans(ctx context.Context, counted map[string]*Fault) error {
	survey, err := s.Orphans.Survey(ctx)
	if err == nil && len(survey.UnavailableSources) > 0 { // the survey neither proves nor disproves anything
		err = fmt.Errorf("look for directories of pods that are gone: %s", strings.Join(survey.UnavailableSources, "; "))
	}
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, f := range survey.Findings() {
		if s.Guard.Mode(f.Code, nil) == Off {
			continue
		}
		found[f.Pod.UID] = true
		if counted[f.Pod.UID] == nil {
			s.Observer.Found(f, 0)
		}
		counted[f.Pod.UID] = &Fault{Finding: f}
	}
	if len(survey.Skipped) > 0 { // the others may still be there; a look at their directories finds out
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
