// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package krbdtest has block devices look like krbd's, with the files that the kernel's Documentation/ABI/testing/sysfs-bus-rbd
// describes, below a directory. It is for tests alone.
package krbdtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Remove is the file of the driver that takes the number of a device to unmap.
const Remove = "sys/bus/rbd/remove_single_major"

// Tree is a root directory in which block devices are called rbd0, rbd1, ...
type Tree struct {
	Root string

	t testing.TB
}

// New makes a tree without devices.
func New(t testing.TB) *Tree { return &Tree{Root: t.TempDir(), t: t} }

// Map has a block device be rbd with that number. Like the real devices of the running kernel, it has a diskseq or not.
func (k *Tree) Map(device int, major, minor uint32) {
	k.t.Helper()
	n, number := strconv.Itoa(device), fmt.Sprintf("%d:%d", major, minor)
	k.write("sys/bus/rbd/devices/"+n+"/major", fmt.Sprint(major))
	k.write("sys/bus/rbd/devices/"+n+"/minor", fmt.Sprint(minor))
	k.write(Remove, "")
	block := "sys/devices/rbd/" + n + "/block/rbd" + n
	k.write(block+"/dev", number)
	k.setImage(n, "5")
	k.write(block+"/queue/iostats", "1")
	k.link("../../devices/rbd/"+n+"/block/rbd"+n, "sys/class/block/rbd"+n)
	k.link("../../devices/rbd/"+n+"/block/rbd"+n, "sys/dev/block/"+number)
	k.Count(device, 100)
}

// Count sets how many reads the kernel has counted on a device.
func (k *Tree) Count(device, reads int) {
	k.t.Helper()
	n := strconv.Itoa(device)
	k.write("sys/devices/rbd/"+n+"/block/rbd"+n+"/stat", fmt.Sprintf("%d 0 0 0 7 0 0 0 0 0 0 0 0 0 0 0 0", reads))
}

// Replace has another image be behind a device.
func (k *Tree) Replace(device int) {
	k.t.Helper()
	k.setImage(strconv.Itoa(device), "6")
}

// setImage has an image be behind the device with that number.
func (k *Tree) setImage(device, id string) {
	k.t.Helper()
	k.write("sys/bus/rbd/devices/"+device+"/image_id", id)
	if sys.HasDiskSequence.Probe() == nil {
		k.write("sys/devices/rbd/"+device+"/block/rbd"+device+"/diskseq", id)
	}
}

// Unmap takes away the device with that number. As with the kernel, krbd knows it until the disk is gone.
func (k *Tree) Unmap(device string) error {
	for _, gone := range []string{"sys/class/block/rbd" + device, "sys/devices/rbd/" + device, "sys/bus/rbd/devices/" + device} {
		if err := os.RemoveAll(filepath.Join(k.Root, gone)); err != nil {
			return fmt.Errorf("unmapping rbd%s: %w", device, err)
		}
	}
	return nil
}

func (k *Tree) write(name, text string) {
	k.t.Helper()
	path := filepath.Join(k.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

func (k *Tree) link(target, name string) {
	k.t.Helper()
	path := filepath.Join(k.Root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		k.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		k.t.Fatal(err)
	}
}
