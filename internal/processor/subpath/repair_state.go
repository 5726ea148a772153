// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"slices"

	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/processor/restart"
)

// repairState has the facts of the time of the plan that Verify needs.
type repairState struct {
	restart.Pending
	// Others are the mounts of the pod that are none of the plan's business.
	Others []otherMount `json:"others,omitempty"`
	// Going is whether the pod was being deleted: then it may be gone by now.
	Going bool `json:"going,omitempty"`
}

type otherMount struct {
	ID    int    `json:"id"` // in mountinfo
	Point string `json:"point"`
}

// otherMounts lists the pod's mounts without those that are to be unmounted.
func otherMounts(report *subpath.Report, planned []int) []otherMount {
	var all []otherMount
	for _, m := range report.Mounts {
		if !slices.Contains(planned, m.ID) {
			all = append(all, otherMount{ID: m.ID, Point: m.Point})
		}
	}
	return all
}
