// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const blockDevices = "/sys/block"

// probeDiskSequence looks at a disk, of which there has to be one.
func probeDiskSequence() error {
	disks, err := os.ReadDir(blockDevices)
	if err != nil {
		return err
	}
	if len(disks) == 0 {
		return fmt.Errorf("%s is empty: %w", blockDevices, ENODEV)
	}
	for _, disk := range disks {
		_, err := os.Lstat(blockDevices + "/" + disk.Name() + "/diskseq")
		if err == nil {
			return nil
		}
		if !errors.Is(err, ENOENT) {
			return err
		}
	}
	return errors.ErrUnsupported
}

// probeFUSEServer makes a file system of FUSE that is mounted nowhere and goes at once, and reads the kernel's text
// about the descriptor that serves it.
func probeFUSEServer() error {
	n, err := retryInterrupted(func() (int, error) { return unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0) })
	if err != nil {
		return err
	}
	device := newFD(n)
	defer device.Close()
	root, err := mountDetached("fuse", 0,
		[2]string{"fd", device.String()}, [2]string{"rootmode", "40000"}, [2]string{"user_id", "0"}, [2]string{"group_id", "0"})
	if err != nil {
		return err
	}
	defer root.Close()
	connection, err := FDInfo(ThreadProc("fdinfo/"+device.String()), "fuse_connection")
	if err == nil && connection == "" {
		err = errors.ErrUnsupported
	}
	return err
}
