// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import "slices"

// maxNamed is how many different holders are named that are no mounts: more of
// them say nothing new.
const maxNamed = 1000

// entry is what makes a holder of its own. Processes that agree in it share one.
type entry struct {
	kind         Kind
	path, detail string
}

// add notes a holder that is no mount.
func (s *search) add(h Holder) {
	key := entry{h.Kind, h.Path, h.Detail}
	if i, known := s.entries[key]; known {
		pids := &s.report.Holders[i].PIDs
		for _, pid := range h.PIDs {
			if !slices.Contains(*pids, pid) {
				*pids = append(*pids, pid)
			}
		}
		return
	}
	if len(s.entries) >= maxNamed {
		s.report.Looked.Unnamed++
		return
	}
	s.entries[key] = len(s.report.Holders)
	s.report.Holders = append(s.report.Holders, h)
}
