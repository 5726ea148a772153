// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Parameterized is a Processor or a Recoverer that reads parameters.
type Parameterized interface {
	// Parameters lists the keys of all of them.
	Parameters() []string
}

// CheckParameters refuses a parameter that is named like those of the step and is none of them. With a typing error in its
// key, a parameter that is to narrow a repair would widen it. Those of other processors are not looked at.
func (s Step) CheckParameters(values map[string]string) error {
	var step any = s.Processor
	if s.Recoverer != nil {
		step = s.Recoverer
	}
	p, ok := step.(Parameterized)
	if !ok {
		return nil
	}
	known := p.Parameters()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		alike := func(other string) bool { return strings.HasPrefix(key, other[:strings.LastIndexByte(other, '.')+1]) }
		if slices.ContainsFunc(known, alike) && !slices.Contains(known, key) {
			return Stalled(fmt.Errorf("unknown parameter %s: the parameters of %s are %s", key, s.Name(), strings.Join(known, ", ")))
		}
	}
	return nil
}
