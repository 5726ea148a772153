// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"errors"

	"kubediag.org/kubediag/internal/linux/blockdev"
)

// findLoops looks for loop devices over a file on the device, or over the device
// itself.
func (s *holderSearch) findLoops(ctx context.Context) error {
	for _, device := range s.allDevices {
		if device.Kind != blockdev.Loop || device.Parent != "" || device.Number == s.report.Device.Number {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := s.sys.Backing(device)
		if errors.Is(err, blockdev.ErrNotAttached) || errors.Is(err, blockdev.ErrNotFound) {
			continue
		}
		s.report.Coverage.Loops++
		holder := Holder{Kind: LoopDevice, Path: device.Node(), Detail: "backed by " + b.File, File: b.File}
		switch {
		case err != nil:
			// One whose file system hangs: only the path is known.
			s.unansweredLoops = append(s.unansweredLoops, device.Node()+" backed by "+b.File)
		case s.superblockNumbers[b.Number]:
			s.markExplained(b.Number)
			s.addHolder(holder)
		case s.devices[b.Device]:
			s.busyProven = true
			s.addHolder(holder)
		}
	}
	return nil
}
