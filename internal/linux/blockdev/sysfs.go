// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sysfs reads the kernel's files about block devices below a root.
type sysfs struct{ root string }

// pathAt is where a path below the root lies.
func (s sysfs) pathAt(name string) string {
	if s.root == "" {
		return filepath.Join("/", name)
	}
	return filepath.Join(s.root, name)
}

// attributePath is where a file about a block device lies.
func (s sysfs) attributePath(device, name string) string {
	return s.pathAt(filepath.Join("sys/class/block", device, name))
}

// imagePath is the directory in which krbd describes one of its devices.
func (s sysfs) imagePath(id string) string { return s.pathAt("sys/bus/rbd/devices/" + id) }

func (s sysfs) hasAttribute(device, name string) bool {
	return pathExists(s.attributePath(device, name))
}

func pathExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// readAttribute returns the text of a file about a block device.
func (s sysfs) readAttribute(device, name string) (string, error) {
	return readText(s.attributePath(device, name))
}

// listNames returns the names in a directory, in order; nil if there is no directory.
func listNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(notFoundError(err), ErrNotFound) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// readNumber reads a file about a block device; 0 if there is none.
func (s sysfs) readNumber(device, name string) uint64 {
	text, err := s.readAttribute(device, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// readText returns the text of a file without the newline at its end.
func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSuffix(string(text), "\n"), err
}

// writeFile writes to a file that is there, in one call, as drivers expect it.
func (s Sys) writeFile(path, text string) error {
	if s.Write != nil {
		return s.Write(path, text)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// diskFamily is the device, its partitions, and the disk that it is a partition of:
// who has one of them claimed has the device.
func (s sysfs) diskFamily(device Device) ([]Device, error) {
	devices := []Device{device}
	if device.Kind == Anonymous {
		return devices, nil
	}
	if device.Parent != "" {
		disk, err := s.readDevice(device.Parent)
		if err != nil {
			return nil, err
		}
		return append(devices, disk), nil
	}
	entries, err := os.ReadDir(s.attributePath(device.Name, ""))
	if err != nil {
		return nil, notFoundError(err)
	}
	for _, e := range entries {
		// A partition is a directory below its disk's, and a device itself.
		if !e.IsDir() || !s.hasAttribute(device.Name, e.Name()+"/partition") {
			continue
		}
		if partition, err := s.readDevice(e.Name()); err == nil {
			devices = append(devices, partition)
		}
	}
	return devices, nil
}
