// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// Step is the built-in of a name: one of its fields.
type Step struct {
	// Processor looks.
	Processor processor.Processor
	// Family repairs one kind of fault, and Planner has several families repair.
	Family  repair.Family
	Planner repair.Planner
}

// one is the field that is set.
func (s Step) one() interface{ Name() string } {
	switch {
	case s.Processor != nil:
		return s.Processor
	case s.Family != nil:
		return s.Family
	}
	return s.Planner
}

// Name of the step.
func (s Step) Name() string { return s.one().Name() }

// Registry holds the built-in processors by name. It is a value that is handed around, filled before it is used and
// not changed after.
type Registry struct {
	steps map[string]Step
	// Evictor and Records change pods. Nil: no pod is changed.
	Evictor repair.Evictor
	Records repair.Records
}

// NewRegistry makes a registry of the given steps. Two of one name are an error.
func NewRegistry(steps ...Step) (*Registry, error) {
	r := &Registry{steps: map[string]Step{}}
	for _, s := range steps {
		set := 0
		for _, is := range []bool{s.Processor != nil, s.Family != nil, s.Planner != nil} {
			if is {
				set++
			}
		}
		if set != 1 {
			return nil, fmt.Errorf("registering step: exactly one of processor, family and planner must be set")
		}
		if _, ok := r.steps[s.Name()]; ok {
			return nil, fmt.Errorf("registering %q: name is taken", s.Name())
		}
		r.steps[s.Name()] = s
	}
	return r, nil
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

// CheckParameters refuses a parameter that is named like those of the step and is none of them. With a typing error in its
// key, a parameter that is to narrow a repair would widen it. Those of other processors are not looked at.
func (s Step) CheckParameters(values map[string]string) error {
	p, ok := s.one().(processor.Parameterized)
	if !ok {
		return nil
	}
	known := p.Parameters()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		alike := func(other string) bool { return strings.HasPrefix(key, other[:strings.LastIndexByte(other, '.')+1]) }
		if slices.ContainsFunc(known, alike) && !slices.Contains(known, key) {
			return processor.Stalled(fmt.Errorf("unknown parameter %s: the parameters of %s are %s", key, s.Name(), strings.Join(known, ", ")))
		}
	}
	return nil
}
