// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// ParseBool reads a parameter that is "true" or "false". A value that is neither gives an error that is not worth another
// try.
func ParseBool(values map[string]string, key string, otherwise bool) (bool, error) {
	switch v := values[key]; v {
	case "":
		return otherwise, nil
	case "true", "false":
		return v == "true", nil
	default:
		return false, Stalled(fmt.Errorf("read parameter %s: value %q must be true or false", key, v))
	}
}

// Number is a parameter that is a whole number.
type Number struct {
	Key               string
	Default, Min, Max int
}

// Parse reads the parameter. A value that is no such number gives an error that is not worth another try.
func (n Number) Parse(values map[string]string) (int, error) {
	v := values[n.Key]
	if v == "" {
		return n.Default, nil
	}
	number, err := strconv.Atoi(v)
	if err != nil || number < n.Min || number > n.Max {
		return 0, Stalled(fmt.Errorf("read parameter %s: value %q must be a number from %d to %d", n.Key, v, n.Min, n.Max))
	}
	return number, nil
}
