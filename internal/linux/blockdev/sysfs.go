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

// at is where a path below the root lies.
func (s Sys) at(name string) string {
	if s.Root == "" {
		return filepath.Join("/", name)
	}
	return filepath.Join(s.Root, name)
}

// attr is where a file about a block device lies.
func (s Sys) attr(device, name string) string {
	return s.at(filepath.Join("sys/class/block", device, name))
}

// image is where krbd tells about one of its devices.
func (s Sys) image(id string) string { return s.at("sys/bus/rbd/devices/" + id) }

func (s Sys) has(device, name string) bool { return exists(s.attr(device, name)) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// read gives the text of a file about a block device.
func (s Sys) read(device, name string) (string, error) { return readText(s.attr(device, name)) }

// list gives the names in a directory, in order; none where there is none.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(gone(err), ErrNotFound) {
		return nil, nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

// number reads a file about a block device; 0 where there is none.
func (s Sys) number(device, name string) uint64 {
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

// readText gives the text of a file without the newline at its end.
func readText(path string) (string, error) {
	text, err := os.ReadFile(path)
	return strings.TrimSuffix(string(text), "\n"), err
}

// write writes to a file that is there, in one call, as drivers expect it.
func (s Sys) write(path, text string) error {
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

// family is the device, its partitions, and the disk that it is a partition of:
// who has one of them claimed has the device.
func (s Sys) family(d Device) ([]Device, error) {
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
		return nil, gone(err)
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
