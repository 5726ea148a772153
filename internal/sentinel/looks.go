// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/mountstate"
)

// firstDelay is the time until the searches that are made from time to time begin. Their faults hurt no pod that runs.
const firstDelay = 30 * time.Second

// Look is a search that is made from time to time.
type Look struct {
	mountstate.Inspector
	// Every is the time between two searches; not 0.
	Every time.Duration
}

// A search that has found faults is made again after minLookGap, to see if they are healed. The delay doubles up to maxLookGap while the
// faults stay the same. The search takes at most one part in lookShare of the time, unless its interval is shorter.
const (
	minLookGap, maxLookGap = 5 * time.Second, time.Minute
	lookShare              = 500
)

// lookAgain makes a search from time to time, until ctx is done. A search that fails neither proves nor disproves a fault.
func (s *Sentinel) lookAgain(ctx context.Context, search fault.Search, look Look) {
	present, gap := map[fault.Key]*Fault{}, minLookGap
	for delay := firstDelay; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		began := time.Now()
		survey, err := look.Look(ctx, mountstate.Scope{})
		took := time.Since(began)
		gap = min(2*gap, maxLookGap)
		switch {
		case err == nil:
			if s.publishLook(search, survey, present) {
				gap = minLookGap
			}
		case ctx.Err() == nil:
			s.Observer.Trouble(fmt.Errorf("look for faults by search %q: %w", search, err))
		}
		delay = jitter(look.Every)
		if len(present) > 0 {
			delay = min(delay, max(gap, lookShare*took))
		}
	}
}

// publishLook makes present the faults that a search has found, and reports whether they are others than before.
func (s *Sentinel) publishLook(search fault.Search, survey mountstate.Survey, present map[fault.Key]*Fault) (changed bool) {
	if len(survey.Over) > 0 { // a mount inside a volume of theirs makes no event when its pod is to go
		s.podsStay.Store(true)
	}
	before := maps.Clone(present)
	clear(present)
	for _, f := range survey.Findings {
		key := f.Key()
		if s.Guard.Mode(f.Code, s.Pods.PodByUID(f.Pod.UID)) == Off || present[key] != nil {
			continue
		}
		if present[key] = (&Fault{Finding: f}); before[key] == nil {
			s.Observer.Found(f, 0)
			changed = true
		}
	}
	s.publish(search, slices.Collect(maps.Values(present)))
	return changed || len(before) != len(present)
}
