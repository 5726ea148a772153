// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"fmt"
	"strconv"
)

// Parameterized is a processor or a family that reads parameters.
type Parameterized interface {
	// Parameters lists the keys of all of them.
	Parameters() []string
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
