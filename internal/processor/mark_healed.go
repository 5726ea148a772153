// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package processor

import (
	"slices"

	"kubediag.org/kubediag/internal/fault"
)

// NotAwaitedNote is the evidence of a fault that Healed leaves open.
const NotAwaitedNote = "the mount is repaired; the container was not waited for"

// MarkHealed returns the findings of a plan as healed, but for those that are open: what was done to them is proven,
// and not that the containers which could not start have started, for the run did not wait. Nil: none is open.
func MarkHealed(findings []fault.Finding, open func(f fault.Finding) bool) []fault.Finding {
	all := slices.Clone(findings)
	for i := range all {
		f := &all[i]
		if f.Healed = open == nil || !open(*f); !f.Healed {
			f.Evidence = append(slices.Clone(f.Evidence), NotAwaitedNote)
		}
	}
	return all
}
