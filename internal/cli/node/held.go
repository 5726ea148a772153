// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// heldDevices looks for block devices that the kubelet has done with and other mount namespaces keep: with a copy of one
// of its mounts. What containers have mounted by themselves is theirs, and no fault.
func heldDevices(ctx context.Context, s *scan) ([]fault.Finding, error) {
	left, err := newInspector(s.node, mountns.NewScanner(), s.runtime).Left(ctx)
	if err != nil {
		return nil, err
	}
	var faults []fault.Finding
	for _, c := range left {
		s.looked.pass(c.Looked.Mounts.Denied, c.Looked.Mounts.Partial)
		if c.IsHeld() && c.Copied() {
			faults = append(faults, c.Findings()...)
		}
	}
	s.looked.DevicesElsewhere = len(left)
	return faults, nil
}
