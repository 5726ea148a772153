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

// Resolve finds the device that spec names: the absolute path of its node, with
// symbolic links followed, the kernel's name for it ("rbd3", "sda1"), or
// "major:minor". A path that leads to anything but a block device gives
// ErrNotBlock, whatever is not there ErrNotFound, a path that does not answer
// within a few seconds ErrNoAnswer.
func (s Sys) Resolve(spec string) (Device, error) {
	d, err := s.files().resolve(spec)
	if err != nil {
		return Device{}, fmt.Errorf("resolve device %q: %w", spec, err)
	}
	return d, nil
}

func (s sysfs) resolve(spec string) (Device, error) {
	switch {
	case spec == "":
		return Device{}, errors.New("no path, name or number given")
	case strings.ContainsRune(spec, 0):
		return Device{}, errors.New("has a zero byte")
	case strings.HasPrefix(spec, "/"):
		return s.byPath(spec)
	case strings.Contains(spec, ":"):
		n, err := parseNumber(spec)
		if err != nil {
			return Device{}, err
		}
		return s.byNumber(n)
	case strings.Contains(spec, "/"):
		return Device{}, errors.New("neither an absolute path nor a name: has a slash")
	case spec == "." || spec == "..":
		return Device{}, ErrNotFound
	}
	return s.device(spec)
}

// All lists every block device, partitions included, in the order of their
// names. A device that goes meanwhile is left out.
func (s Sys) All() ([]Device, error) {
	entries, err := os.ReadDir(s.files().at("sys/class/block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var devices []Device
	for _, e := range entries {
		d, err := s.files().device(e.Name())
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list block devices: %w", err)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// byPath finds the device whose node path leads to.
func (s sysfs) byPath(name string) (Device, error) {
	st, err := within(&paths, s.at(name), func() (sys.Stat, error) { return s.statPath(name) })
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

// statPath looks at what a path leads to, absolute links in it meant from the root. Links
// of /proc are no paths; no device is there.
func (s sysfs) statPath(name string) (sys.Stat, error) {
	root, err := sys.OpenRoot(s.at("/"))
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
}

func (s sysfs) byNumber(n Number) (Device, error) {
	link, err := os.Readlink(s.at("sys/dev/block/" + n.String()))
	if err != nil {
		return Device{}, fmt.Errorf("device %v: %w", n, notFound(err))
	}
	d, err := s.device(path.Base(link))
	if err == nil && d.Number != n {
		err = fmt.Errorf("device %v: %w", n, ErrNotFound)
	}
	return d, err
}

// device reads what sysfs knows of the device of that name, which has no slash.
func (s sysfs) device(name string) (Device, error) {
	text, err := s.read(name, "dev")
	if err != nil {
		return Device{}, fmt.Errorf("device %q: %w", name, notFound(err))
	}
	n, err := parseNumber(text)
	if err != nil {
		return Device{}, fmt.Errorf("device %q: %w", name, err)
	}
	d, disk := Device{Number: n, Name: name}, name
	if s.has(name, "partition") {
		link, err := os.Readlink(s.attr(name, ""))
		if err != nil {
			return Device{}, fmt.Errorf("device %q: %w", name, notFound(err))
		}
		disk = path.Base(path.Dir(link))
		d.Parent = disk
	}
	d.Kind = s.kind(disk)
	d.Sequence = s.number(disk, "diskseq")
	if d.Sequence == 0 {
		d.Image = s.imageOf(d.Kind, disk)
	}
	return d, nil
}

// kind returns what drives a disk.
func (s sysfs) kind(disk string) Kind {
	number, _ := s.read(disk, "dev")
	switch {
	case s.imageID(disk, number) != "":
		return KRBD
	case numbered(disk, "loop") && strings.HasPrefix(number, "7:"):
		return Loop
	case numbered(disk, "zram") && s.has(disk, "initstate"):
		return Zram
	case s.has(disk, "dm"):
		return DM
	case s.has(disk, "md"):
		return MD
	}
	return Other
}

// numbered reports whether name is prefix and a number.
func numbered(name, prefix string) bool {
	number, ok := strings.CutPrefix(name, prefix)
	return ok && digits(number)
}

// imageID is the number by which krbd knows the disk of that name and device
// number; empty if it does not.
func (s sysfs) imageID(disk, number string) string {
	if !numbered(disk, "rbd") {
		return ""
	}
	id := strings.TrimPrefix(disk, "rbd")
	major, minor, _ := strings.Cut(number, ":")
	if text, err := readText(s.image(id) + "/major"); err != nil || text != major {
		return ""
	}
	// Before 3.14 there is no such file, and each device has a major of its own.
	text, err := readText(s.image(id) + "/minor")
	if err == nil && text != minor || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return id
}

// imageOf distinguishes the image behind a disk from what may be there next. Its 16
// digits say nothing else, as the order to map may have secrets in it. Each mapping
// of krbd also has a directory of its own. Empty if it is not known.
func (s sysfs) imageOf(kind Kind, disk string) string {
	var dir string
	var names []string
	switch kind {
	case KRBD:
		dir = s.image(strings.TrimPrefix(disk, "rbd"))
		names = []string{"pool_id", "image_id", "name", "current_snap", "client_id", "config_info"}
	case Loop:
		dir = s.attr(disk, "loop")
		names = []string{"backing_file", "offset", "sizelimit"}
	default:
		return ""
	}
	sum, known := sha256.New(), false
	for _, name := range names {
		text, _ := readText(dir + "/" + name) // what this kernel does not have is always empty
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

// notFound is ErrNotFound if sysfs has no such file, or its device went while it
// was read.
func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, sys.ENODEV) || errors.Is(err, sys.ENXIO) {
		return ErrNotFound
	}
	return err
}
