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

// sysfs reads what the kernel shows of block devices in the files below a root.
type sysfs struct{ root string }

// at is where a path below the root lies.
func (s sysfs) at(name string) string {
	if s.root == "" {
		return filepath.Join("/", name)
	}
	return filepath.Join(s.root, name)
}

// attr is where a file about a block device lies.
func (s sysfs) attr(device, name string) string {
	return s.at(filepath.Join("sys/class/block", device, name))
}

// image is the directory in which krbd describes one of its devices.
func (s sysfs) image(id string) string { return s.at("sys/bus/rbd/devices/" + id) }

func (s sysfs) has(device, name string) bool { return exists(s.attr(device, name)) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// read returns the text of a file about a block device.
func (s sysfs) read(device, name string) (string, error) { return readText(s.attr(device, name)) }

// list returns the names in a directory, in order; none if there is none.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(notFound(err), ErrNotFound) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// number reads a file about a block device; 0 if there is none.
func (s sysfs) number(device, name string) uint64 {
	text, err := s.read(device, name)
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

// write writes to a file that is there, in one call, as drivers expect it.
func (r detacher) write(path, text string) error {
	if r.Write != nil {
		return r.Write(path, text)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

// family is the device, its partitions, and the disk that it is a partition of:
// who has one of them claimed has the device.
func (s sysfs) family(d Device) ([]Device, error) {
	devices := []Device{d}
	if d.Parent != "" {
		disk, err := s.device(d.Parent)
		if err != nil {
			return nil, err
		}
		return append(devices, disk), nil
	}
	entries, err := os.ReadDir(s.attr(d.Name, ""))
	if err != nil {
		return nil, notFound(err)
	}
	for _, e := range entries {
		// A partition is a directory below its disk's, and a device itself.
		if !e.IsDir() || !s.has(d.Name, e.Name()+"/partition") {
			continue
		}
		if partition, err := s.device(e.Name()); err == nil {
			devices = append(devices, partition)
		}
	}
	return devices, nil
}
