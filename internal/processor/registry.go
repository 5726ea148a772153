// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"fmt"
	"maps"
	"slices"
)

// Step is what a name stands for: a Processor or a Recoverer, one of the two.
type Step struct {
	Processor Processor
	Recoverer Recoverer
}

// Name of the step.
func (s Step) Name() string {
	if s.Recoverer != nil {
		return s.Recoverer.Name()
	}
	return s.Processor.Name()
}

// Registry holds the built-in processors by name. It is a value that is handed around, filled before it is used and
// not changed after.
type Registry struct {
	steps map[string]Step
}

// NewRegistry makes a registry of the given steps. Two of one name are an error.
func NewRegistry(steps ...Step) (*Registry, error) {
	r := &Registry{steps: map[string]Step{}}
	for _, s := range steps {
		if (s.Processor == nil) == (s.Recoverer == nil) {
			return nil, fmt.Errorf("registering step: exactly one of processor and recoverer must be set")
		}
		if _, ok := r.steps[s.Name()]; ok {
			return nil, fmt.Errorf("registering %q: name is taken", s.Name())
		}
		r.steps[s.Name()] = s
	}
	return r, nil
}

// Replace returns a registry with other recoverers in the place of all.
func (r *Registry) Replace(by func(Recoverer) Recoverer) *Registry {
	other := &Registry{steps: maps.Clone(r.steps)}
	for name, s := range other.steps {
		if s.Recoverer != nil {
			other.steps[name] = Step{Recoverer: by(s.Recoverer)}
		}
	}
	return other
}

// Lookup finds a step by name.
func (r *Registry) Lookup(name string) (Step, bool) {
	s, ok := r.steps[name]
	return s, ok
}

// Names lists all names in order.
func (r *Registry) Names() []string {
	return slices.Sorted(maps.Keys(r.steps))
}
