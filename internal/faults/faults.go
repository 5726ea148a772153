// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package faults converts the mounts of the node into those that plans and findings hold, and back, and hands on how a change went that
// another process made. All families of faults use it; it knows none of them.
package faults

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// MountOf returns a mount as plans and findings hold it, so that MountID can find it later. The zero mount gives a zero
// one.
func MountOf(m mountns.Mount) fault.Mount {
	if m.ID == 0 {
		return fault.Mount{}
	}
	return mountOf(mount.IDOf(m), m.FSType, m.Namespace.Inode)
}

// MountOfState is MountOf for a mount that was inspected in a namespace with the inode number.
func MountOfState(st mount.State, namespace uint64) fault.Mount {
	return mountOf(st.ID, st.FSType, namespace)
}

func mountOf(id mount.ID, fsType string, namespace uint64) fault.Mount {
	return fault.Mount{
		ID: id.UniqueID, MountInfoID: id.MountInfoID, ParentID: id.Parent, Namespace: namespace,
		Device: fmt.Sprintf("%d:%d", id.Major, id.Minor), Root: id.Root, Point: id.Point, FSType: fsType,
	}
}

// MountID is the reverse of MountOf.
func MountID(m fault.Mount) (mount.ID, error) {
	major, minor, _ := strings.Cut(m.Device, ":")
	a, errMajor := strconv.ParseUint(major, 10, 32)
	b, errMinor := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(errMajor, errMinor); err != nil {
		return mount.ID{}, fmt.Errorf("read device %q of mount at %q: %w", m.Device, m.Point, err)
	}
	return mount.ID{
		UniqueID: m.ID, MountInfoID: m.MountInfoID, Parent: m.ParentID, Major: uint32(a), Minor: uint32(b), Root: m.Root, Point: m.Point,
	}, nil
}
