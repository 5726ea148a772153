// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devicetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/blockdev"
)

// KRBD is a root directory in which real loop devices are called rbd0, rbd1, ..., with krbd's files as the kernel's
// Documentation/ABI/testing/sysfs-bus-rbd has them, and a driver that unmaps them.
type KRBD struct {
	Root string
	// Refuse is what the driver answers; nil: it unmaps.
	Refuse error
	// Unmapped are the numbers that were written to the driver.
	Unmapped []string

	t *testing.T
}

// MapKRBD has the devices of the scenes be krbd's, and the first scene's inspector look there.
func MapKRBD(t *testing.T, scenes ...*Scene) *KRBD {
	t.Helper()
	k := &KRBD{Root: t.TempDir(), t: t}
	for i, s := range scenes {
		n, number := strconv.Itoa(i), s.Device.Number
		k.write("sys/bus/rbd/devices/"+n+"/major", fmt.Sprint(number.Major))
		k.write("sys/bus/rbd/devices/"+n+"/minor", fmt.Sprint(number.Minor))
		k.write("sys/bus/rbd/remove_single_major", "")
		block := "sys/devices/rbd/" + n + "/block/rbd" + n
		k.write(block+"/dev", number.String())
		k.write(block+"/diskseq", "5")
		k.write(block+"/queue/iostats", "1")
		k.link("../../devices/rbd/"+n+"/block/rbd"+n, "sys/class/block/rbd"+n)
		k.link("../../devices/rbd/"+n+"/block/rbd"+n, "sys/dev/block/"+number.String())
		k.Count(i, 100)
	}
	scenes[0].Inspector.Finder.Sys = blockdev.Sys{Root: k.Root, Write: k.driver}
	return k
}

// Count sets how many reads the kernel has counted on a device.
func (k *KRBD) Count(device, reads int) {
	k.t.Helper()
	n := strconv.Itoa(device)
	k.write("sys/devices/rbd/"+n+"/block/rbd"+n+"/stat", fmt.Sprintf("%d 0 0 0 7 0 0 0 0 0 0 0 0 0 0 0 0", reads))
}

// Replace has another image be behind a device.
func (k *KRBD) Replace(device int) {
	k.t.Helper()
	n := strconv.Itoa(device)
	k.write("sys/devices/rbd/"+n+"/block/rbd"+n+"/diskseq", "6")
}

// driver is what the kernel does with what is written.
func (k *KRBD) driver(path, text string) error {
	if path != filepath.Join(k.Root, "sys/bus/rbd/remove_single_major") {
		return fmt.Errorf("write %q to %q: %w", text, path, os.ErrPermission)
	}
	if k.Refuse != nil {
		return k.Refuse
	}
	k.Unmapped = append(k.Unmapped, text)
	for _, gone := range []string{"sys/bus/rbd/devices/" + text, "sys/devices/rbd/" + text, "sys/class/block/rbd" + text} {
		if err := os.RemoveAll(filepath.Join(k.Root, gone)); err != nil {
			return err
		}
	}
	return nil
}

func (k *KRBD) write(name, text string) {
	k.t.Helper()
	path := filepath.Join(k.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *KRBD) link(target, name string) {
	k.t.Helper()
	path := filepath.Join(k.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		k.t.Fatal(err)
	}
}
