// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"errors"

	"kubediag.org/kubediag/internal/linux/blockdev"
)

// loops looks for loop devices over a file on the device, or over the device
// itself.
func (s *search) loops(ctx context.Context) error {
	for _, d := range s.all {
		if d.Kind != blockdev.Loop || d.Parent != "" || d.Number == s.report.Device.Number {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := s.sys.Backing(d)
		if errors.Is(err, blockdev.ErrNotAttached) || errors.Is(err, blockdev.ErrNotFound) {
			continue
		}
		s.report.Looked.Loops++
		h := Holder{Kind: LoopDevice, Path: d.Node(), Detail: "backed by " + b.File}
		switch {
		case err != nil:
			// One whose file system hangs: only the path is known.
			s.unanswered = append(s.unanswered, d.Node()+" backed by "+b.File)
		case s.super[b.Number]:
			s.place(b.Number)
			s.add(h)
		case s.devices[b.Device]:
			s.proven = true
			s.add(h)
		}
	}
	return nil
}
