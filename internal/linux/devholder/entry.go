// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import "slices"

// maxNamedHolders is how many different holders are named that are no mounts: more of
// them say nothing new.
const maxNamedHolders = 1000

// holderKey is what makes a holder of its own. Processes that agree in it share one.
type holderKey struct {
	kind         Kind
	path, detail string
}

// addHolder notes a holder that is no mount.
func (s *holderSearch) addHolder(holder Holder) {
	key := holderKey{holder.Kind, holder.Path, holder.Detail}
	if i, known := s.entries[key]; known {
		pids := &s.report.Holders[i].PIDs
		for _, pid := range holder.PIDs {
			if !slices.Contains(*pids, pid) {
				*pids = append(*pids, pid)
			}
		}
		return
	}
	if len(s.entries) >= maxNamedHolders {
		s.report.Coverage.Unnamed++
		return
	}
	s.entries[key] = len(s.report.Holders)
	s.report.Holders = append(s.report.Holders, holder)
}
