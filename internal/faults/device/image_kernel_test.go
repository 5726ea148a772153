// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package device_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/device/devicetest"
	"kubediag.org/kubediag/internal/linux/blockdev"
)

// unnumbered has krbd have mapped an image on a kernel that does not number what is behind a device.
func unnumbered(t *testing.T) (*devicetest.Scene, *devicetest.KRBD, func() *fault.Device) {
	t.Helper()
	s := devicetest.New(t, "")
	s.UnmountOnHost()
	k := devicetest.MapKRBD(t, s)
	must(t, os.RemoveAll(filepath.Join(k.Root, "sys/devices/rbd/0/block/rbd0/diskseq")))
	must(t, os.Remove(filepath.Join(k.Root, "sys/bus/rbd/devices/0/image_id")))
	return s, k, func() *fault.Device {
		d, err := s.Inspector.Finder.Sys.Resolve("rbd0")
		must(t, err)
		ref := device.Reference(d)
		return &ref
	}
}

func anyDevice(blockdev.Device) error { return nil }

func TestDetachOfAnImage(t *testing.T) {
	s, k, written := unnumbered(t)
	image := filepath.Join(k.Root, "sys/bus/rbd/devices/0/image_id")
	must(t, os.WriteFile(image, []byte("10a3b4c5\n"), 0o600))
	before := written()
	if before.Image == "" {
		t.Fatalf("%+v, want that it names the image", before)
	}
	must(t, os.WriteFile(image, []byte("another\n"), 0o600))
	if there, err := s.Inspector.There(before); err != nil || there {
		t.Errorf("there %v, %v, with another image mapped by that name", there, err)
	}
	if gone, err := s.Inspector.Detach(t.Context(), before, anyDevice); err != nil || !gone || len(k.Unmapped) > 0 {
		t.Errorf("gone %v, %v, unmapped %q, want the other image left alone", gone, err, k.Unmapped)
	}
	now := written()
	if there, err := s.Inspector.There(now); err != nil || !there {
		t.Errorf("there %v, %v, of the image that is mapped", there, err)
	}
	if gone, err := s.Inspector.Detach(t.Context(), now, anyDevice); err != nil || gone || len(k.Unmapped) != 1 {
		t.Errorf("gone %v, %v, unmapped %q, want the one", gone, err, k.Unmapped)
	}
}

func TestNoDetachOfWhatMayBeAnother(t *testing.T) {
	s, k, written := unnumbered(t)
	gone, err := s.Inspector.Detach(t.Context(), written(), anyDevice)
	if gone || !errors.Is(err, device.ErrNotRemovable) || !strings.Contains(err.Error(), "/dev/rbd0") || len(k.Unmapped) > 0 {
		t.Errorf("gone %v, %v, unmapped %q, want it refused", gone, err, k.Unmapped)
	}
	if there, err := s.Inspector.There(written()); err != nil || !there {
		t.Errorf("there %v, %v", there, err)
	}
}
