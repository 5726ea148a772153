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

// intervals are the times between two searches of those that are made from time to time. A look at the devices reads all mount namespaces.
var intervals = map[source]time.Duration{fromSources: time.Minute, fromDevices: 5 * time.Minute, fromLeaving: 30 * time.Second, fromStacks: 5 * time.Minute}

// lookAgain makes the search of a source from time to time, until ctx is done. A search that fails neither proves nor disproves a fault.
func (s *Sentinel) lookAgain(ctx context.Context, from source, inspector mountstate.Inspector) {
	present := map[fault.Key]*Fault{}
	for next := time.After(firstDelay); ; next = time.After(jitter(intervals[from])) {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		survey, err := inspector.Look(ctx, mountstate.Scope{})
		if err != nil {
			if ctx.Err() == nil {
				s.Observer.Trouble(fmt.Errorf("look for faults by search %q: %w", searches[from], err))
			}
			continue
		}
		if len(survey.Over) > 0 { // a mount inside a volume of theirs makes no event when its pod is to go
			s.podsStay.Store(true)
		}
		before := present
		present = map[fault.Key]*Fault{}
		for _, f := range survey.Findings {
			key := f.Key()
			if s.Guard.Mode(f.Code, s.Pods.PodByUID(f.Pod.UID)) == Off || present[key] != nil {
				continue
			}
			if present[key] = (&Fault{Finding: f}); before[key] == nil {
				s.Observer.Found(f, 0)
			}
		}
		s.publish(from, slices.Collect(maps.Values(present)))
	}
}
