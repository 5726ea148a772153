// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Resolve finds the device that spec names: the absolute path of its node, with symbolic links followed, the kernel's
// name for it ("rbd3", "sda1"), or "major:minor". The major number 0 is no device's, and gives Anonymous, but for 0:0. A path that leads to anything but a block device gives ErrNotBlock. A
// missing path gives ErrNotFound, and a path without an answer within a few seconds ErrNoAnswer.
func (s Sys) Resolve(spec string) (Device, error) {
	files := s.newSysfs()
	var d Device
	var err error
	switch {
	case spec == "":
		err = errors.New("no path, name or number given")
	case strings.ContainsRune(spec, 0):
		err = errors.New("has a zero byte")
	case strings.HasPrefix(spec, "/"):
		d, err = files.byPath(spec)
	case strings.Contains(spec, ":"):
		var n Number
		if n, err = parseNumber(spec); err == nil {
			d, err = files.byNumber(n)
		}
	case strings.Contains(spec, "/"):
		err = errors.New("neither an absolute path nor a name: has a slash")
	case spec == "." || spec == "..":
		err = ErrNotFound
	default:
		d, err = files.readDevice(spec)
	}
	if err != nil {
		return Device{}, fmt.Errorf("resolve device %q: %w", spec, err)
	}
	return d, nil
}

// All lists every block device, partitions included, in the order of their
// names. A device that goes meanwhile is left out.
func (s Sys) All() ([]Device, error) {
	entries, err := os.ReadDir(s.newSysfs().pathAt("sys/class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var devices []Device
	for _, e := range entries {
		device, err := s.newSysfs().readDevice(e.Name())
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list block devices: %w", err)
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// LoopsOver lists the loop devices over files whose paths are wanted, as the kernel shows them, in the order of All. It reads nothing of all
// other devices. A device that goes meanwhile is left out.
func (s Sys) LoopsOver(wanted func(file string) bool) ([]Device, error) {
	entries, err := os.ReadDir(s.newSysfs().pathAt("sys/class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var devices []Device
	for _, e := range entries {
		file, err := s.newSysfs().readAttribute(e.Name(), "loop/backing_file")
		if err != nil || !wanted(file) { // no loop device, or no file behind it
			continue
		}
		device, err := s.newSysfs().readDevice(e.Name())
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("list block devices: %w", err)
		}
		if err == nil && device.Kind == Loop && device.Parent == "" {
			devices = append(devices, device)
		}
	}
	return devices, nil
}

// byPath finds the device whose node path leads to.
func (s sysfs) byPath(name string) (Device, error) {
	// Absolute links are meant from the root. Links of /proc are no paths; no device is there.
	st, err := callWithin(&pathCalls, s.pathAt(name), func() (sys.Stat, error) {
		root, err := sys.OpenRoot(s.pathAt("/"))
		if err != nil {
			return sys.Stat{}, err
		}
		defer root.Close()
		fd, _, err := sys.Walk{Root: root, Check: func(name string, _ *sys.FD) error {
			if name == "/proc" {
				return fmt.Errorf("%w: leads through /proc", ErrNotBlock)
			}
			return nil
		}}.Resolve(name)
		if err != nil {
			return sys.Stat{}, err
		}
		defer fd.Close()
		return fd.Stat(sys.StatType)
	})
	if errors.Is(err, sys.ENOENT) || errors.Is(err, sys.ENOTDIR) {
		return Device{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return Device{}, err
	}
	if !st.IsBlockDevice() {
		return Device{}, ErrNotBlock
	}
	return s.byNumber(Number{st.RdevMajor, st.RdevMinor})
}

func (s sysfs) byNumber(n Number) (Device, error) {
	switch {
	case n == Number{}: // the kernel counts from 1
		return Device{}, fmt.Errorf("file system %v: %w", n, ErrNotFound)
	case n.Major == 0:
		return Device{Number: n, Name: n.String(), Kind: Anonymous}, nil
	}
	link, err := os.Readlink(s.pathAt("sys/dev/block/" + n.String()))
	if err != nil {
		return Device{}, fmt.Errorf("device %v: %w", n, notFoundError(err))
	}
	d, err := s.readDevice(path.Base(link))
	if err == nil && d.Number != n {
		err = fmt.Errorf("device %v: %w", n, ErrNotFound)
	}
	return d, err
}

// readDevice reads the facts of sysfs about the device of that name, which has no slash.
func (s sysfs) readDevice(name string) (Device, error) {
	text, err := s.readAttribute(name, "dev")
	if err != nil {
		return Device{}, fmt.Errorf("device %q: %w", name, notFoundError(err))
	}
	n, err := parseNumber(text)
	if err != nil {
		return Device{}, fmt.Errorf("device %q: %w", name, err)
	}
	device, disk := Device{Number: n, Name: name}, name
	if s.hasAttribute(name, "partition") {
		link, err := os.Readlink(s.attributePath(name, ""))
		if err != nil {
			return Device{}, fmt.Errorf("device %q: %w", name, notFoundError(err))
		}
		disk = path.Base(path.Dir(link))
		device.Parent = disk
	}
	device.Kind = s.kindOfDisk(disk)
	device.Sequence = s.readNumber(disk, "diskseq")
	if device.Sequence == 0 {
		device.Image = s.imageOf(device.Kind, disk)
	}
	return device, nil
}

// kindOfDisk returns the driver of a disk.
func (s sysfs) kindOfDisk(disk string) Kind {
	number, _ := s.readAttribute(disk, "dev")
	switch {
	case s.imageID(disk, number) != "":
		return KRBD
	case isPrefixAndNumber(disk, "loop") && strings.HasPrefix(number, "7:"):
		return Loop
	case isPrefixAndNumber(disk, "zram") && s.hasAttribute(disk, "initstate"):
		return Zram
	case s.hasAttribute(disk, "dm"):
		return DM
	case s.hasAttribute(disk, "md"):
		return MD
	}
	return Other
}

// isPrefixAndNumber reports whether name is prefix and a number.
func isPrefixAndNumber(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	return ok && isDecimal(number)
}

// imageID is the number by which krbd knows the disk of that name and device
// number; empty if it does not.
func (s sysfs) imageID(disk, number string) string {
	if !isPrefixAndNumber(disk, "rbd") {
		return ""
	}
	id := strings.TrimPrefix(disk, "rbd")
	major, minor, _ := strings.Cut(number, ":")
	if text, err := readText(s.imagePath(id) + "/major"); err != nil || text != major {
		return ""
	}
	// Before 3.14 there is no such file, and each device has a major of its own.
	text, err := readText(s.imagePath(id) + "/minor")
	if err == nil && text != minor || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return id
}

// imageOf distinguishes the image behind a disk from its successors. Its 16 digits reveal nothing else, as the order to
// map may have secrets in it. Each mapping of krbd also has a directory of its own. Empty if it is not known.
func (s sysfs) imageOf(kind Kind, disk string) string {
	var dir string
	var names []string
	switch kind {
	case KRBD:
		dir = s.imagePath(strings.TrimPrefix(disk, "rbd"))
		names = []string{"pool_id", "image_id", "name", "current_snap", "client_id", "config_info"}
	case Loop:
		dir = s.attributePath(disk, "loop")
		names = []string{"backing_file", "offset", "sizelimit"}
	default:
		return ""
	}
	sum, known := sha256.New(), false
	for _, name := range names {
		text, _ := readText(dir + "/" + name) // a file that this kernel lacks is always empty
		known = known || text != ""
		fmt.Fprintf(sum, "%q\n", text)
	}
	if !known {
		return ""
	}
	if st, err := sys.StatPath(dir+"/.", sys.StatIno); err == nil {
		fmt.Fprintln(sum, st.Ino)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8])
}

// notFoundError is ErrNotFound if sysfs has no such file, or its device went while it
// was read.
func notFoundError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sys.ENODEV) || errors.Is(err, sys.ENXIO) {
		return ErrNotFound
	}
	return err
}
