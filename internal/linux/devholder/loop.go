// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
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
			if err := s.placeSilentLoop(holder, err); err != nil {
				return err
			}
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

// placeSilentLoop places a loop device whose file is on a file system that hangs or is dead, and says nothing of the file. Its path alone is
// known, as the kernel has it for the mounts of the namespace where it was opened. So the loop device is a holder if in each namespace that has the
// path on a file system which may be silent, that is one of those that are searched. Else it may be a holder.
func (s *holderSearch) placeSilentLoop(holder Holder, silence error) error {
	deepest := map[uint64]mountns.Mount{} // by namespace
	_, err := s.pass.EachMount(func(*mountns.MountBrief) bool { return true }, func(m *mountns.Mount) {
		if old, known := deepest[m.Namespace.Inode]; mountinfo.Within(m.Point, holder.File) && (!known || len(m.Point) >= len(old.Point)) {
			deepest[m.Namespace.Inode] = *m
		}
	})
	if err != nil {
		return err
	}
	var ours, others int
	var number blockdev.Number
	for _, m := range deepest {
		switch n := (blockdev.Number{Major: m.Major, Minor: m.Minor}); {
		case !mountns.MayHang(m.FSType): // it would have answered
		case s.superblockNumbers[n]:
			ours, number = ours+1, n
		default:
			others++
		}
	}
	if ours == 0 || others > 0 {
		s.unansweredLoops = append(s.unansweredLoops, holder.Path+" "+holder.Detail)
		s.report.Coverage.SilentLoops++
		return nil
	}
	s.markExplained(number)
	holder.Detail += fmt.Sprintf(", by the path of the file: its file system does not answer (%v)", silence)
	s.addHolder(holder)
	return nil
}
