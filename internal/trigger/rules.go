// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"errors"
	"sync"

	v1 "kubediag.org/kubediag/api/v1"
)

// Match compares a signal with one Trigger. The error, a *Rejection, is for a signal that matches and cannot be used.
type Match[S any] func(signal S) (c Cause, matched bool, err error)

// Rules are the Triggers of one source, ready to be compared with signals. The zero value holds none.
type Rules[S any] struct {
	mu      sync.RWMutex
	matches map[string]Match[S]
}

// Install sets the rule of a Trigger, new or changed, and reports whether it has one. It has none if it is of another
// source, for which compile returns nil, or if it cannot be compiled.
func (r *Rules[S]) Install(t *v1.Trigger, compile func(t *v1.Trigger) (Match[S], error)) (bool, error) {
	match, err := compile(t)
	if match == nil || err != nil {
		r.Remove(t.Name)
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.matches == nil {
		r.matches = map[string]Match[S]{}
	}
	r.matches[t.Name] = match
	return true, nil
}

// Remove drops the rule of a Trigger.
func (r *Rules[S]) Remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.matches, name)
}

// Empty reports whether there is no rule.
func (r *Rules[S]) Empty() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.matches) == 0
}

// Apply compares a signal with all rules and offers each match. It returns how many there were, and the first error of an
// offer; the other rules have been applied all the same.
func (r *Rules[S]) Apply(to Offerer, signal S) (matched int, first error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for name, match := range r.matches {
		c, ok, err := match(signal)
		if !ok {
			continue
		}
		matched++
		if err == nil {
			err = c.Check()
		}
		if rejection, ok := errors.AsType[*Rejection](err); ok {
			to.Reject(name, c.Kind, rejection)
		} else if err := to.Offer(name, c); err != nil && first == nil {
			first = err
		}
	}
	return matched, first
}
