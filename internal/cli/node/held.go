// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/linux/blockdev"
)

// heldDevices looks for block devices that the kubelet has done with and other mount namespaces keep: with a copy of one
// of its mounts. A mount that a container made itself is its own, and no fault.
func heldDevices(ctx context.Context, s *scan) ([]fault.Finding, error) {
	left, err := s.source.devices(ctx)
	if err != nil {
		return nil, err
	}
	var faults []fault.Finding
	for _, c := range left {
		s.looked.pass(c.Looked.Mounts.Denied, c.Looked.Mounts.Partial, c.Looked.Mounts.Skipped)
		s.looked.Notes = append(s.looked.Notes, waits(c)...)
		if c.IsHeld() && c.Copied() {
			faults = append(faults, c.Findings()...)
		}
	}
	s.looked.DevicesElsewhere = len(left)
	return faults, nil
}

// waits name the sources that did not answer and could have shown more about a device.
func waits(c *device.Case) (list []string) {
	if errors.Is(c.Untested, blockdev.ErrNoAnswer) {
		list = append(list, fmt.Sprintf("waited in vain for device %s to say whether it is busy: %v", c.Device.Node(), c.Untested))
	}
	if n := c.Looked.Stuck; n > 0 {
		list = append(list, fmt.Sprintf("waited in vain for %s, which may hold device %s", processes(n), c.Device.Node()))
	}
	return list
}
