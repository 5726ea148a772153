// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"fmt"
	"slices"

	"kubediag.org/kubediag/internal/processor"
)

// JoinErrors is the error of several families, each of which may be nil. It is worth another try if one of them is.
func JoinErrors(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	first := max(0, slices.IndexFunc(errs, func(err error) bool { return !processor.IsStalled(err) }))
	var others []string
	for i, err := range errs {
		if i != first {
			others = append(others, err.Error())
		}
	}
	if len(others) == 0 {
		return errs[first]
	}
	return fmt.Errorf("%w; %s", errs[first], processor.JoinReasons(others, maxErrors))
}

// joinFailures is the error of two parts, either of which may be nil. It is worth another try if one of them is,
// and held only if both are.
func joinFailures(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil, a.Error() == b.Error():
		return a
	case processor.IsStalled(a) && !processor.IsStalled(b), processor.IsHeld(a) && !processor.IsHeld(b):
		a, b = b, a
	}
	return fmt.Errorf("%w; %s", a, b.Error())
}
