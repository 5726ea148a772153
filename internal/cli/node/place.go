// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// pathTimeout bounds how long is waited for the file systems that a path leads over.
const pathTimeout = 3 * time.Second

// place is a device, and how it was named.
type place struct {
	device blockdev.Device
	// point is where the file system is mounted that a path lies on. Empty if the device itself was named.
	point string
}

// find finds the device that spec names: by the path of its node, by the kernel's name for it, by number, or by the path
// of anything on it. Paths are those that the kubelet sees.
func (l *holderLook) find(ctx context.Context, spec string) (place, error) {
	d, err := l.inspector.Resolve(ctx, spec)
	if err == nil || !errors.Is(err, blockdev.ErrNotBlock) {
		return place{device: d}, err
	}
	m, err := within(ctx, pathTimeout, func(ctx context.Context) (mountinfo.Mount, error) { return l.mountOf(ctx, spec) })
	if err != nil {
		return place{}, fmt.Errorf("find file system of %q: %w", spec, err)
	}
	if d, err = deviceOf(m); err != nil {
		return place{}, fmt.Errorf("find device of %q: %w", spec, err)
	}
	return place{device: d, point: m.Point}, nil
}

// mountOf is the mount that a path lies on. It may wait for the file systems on the way.
func (l *holderLook) mountOf(ctx context.Context, name string) (m mountinfo.Mount, err error) {
	err = l.node.Do(ctx, func() error {
		fd, resolved, err := sys.Walk{}.Resolve(name)
		fd.Close()
		if err != nil {
			return fmt.Errorf("look up %q: %w", resolved, err)
		}
		table, err := mountns.Table(0)
		if err != nil {
			return err
		}
		var ok bool
		if m, ok = table.On(resolved); !ok {
			return fmt.Errorf("%q is on no mount", resolved)
		}
		return nil
	})
	return m, err
}

// deviceOf is the device that a mounted file system is on. There is none if it is in memory, comes over a network, or
// is made of other file systems. The number of a btrfs belongs to no device.
func deviceOf(m mountinfo.Mount) (blockdev.Device, error) {
	spec := blockdev.Number{Major: m.Major, Minor: m.Minor}.String()
	switch {
	case m.FSType == "btrfs":
		spec = m.Source
	case m.Major == 0:
		return blockdev.Device{}, fmt.Errorf("the %s at %q is on no block device", m.FSType, m.Point)
	}
	return blockdev.Sys{}.Resolve(spec)
}
