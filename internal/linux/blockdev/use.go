// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"kubediag.org/kubediag/internal/linux/sys"
)

// FileSystem is a live superblock, which keeps a device busy.
type FileSystem struct {
	// Type is the driver: "ext4" serves ext2 and ext3, too.
	Type string
	// Number is the device that mounts of it show in mountinfo and statmount; the zero Number for btrfs, whose mounts
	// show a number that is in no file of sysfs, and if the owner of the journal on the device is unknown.
	Number Number
	// Members are the names of all devices of a btrfs; its mounts name the node
	// of one of them as their source.
	Members []string
	// Journal is whether the device is not the file system's own but carries
	// its external journal.
	Journal  bool
	Evidence string // the file that shows this, "/sys/fs/ext4/rbd3"
}

// FileSystems lists the live superblocks on the device, on its partitions, and
// on the disk that it is a partition of: any of them makes it busy.
func (s Sys) FileSystems(d Device) ([]FileSystem, error) {
	files := s.newSysfs()
	devices, err := files.diskFamily(d)
	if err != nil {
		return nil, fmt.Errorf("list file systems on %q: %w", d.Name, err)
	}
	var found []FileSystem
	for _, look := range []func(Device) ([]FileSystem, error){files.ownSuperblocks, files.btrfsSuperblocks, files.journalSuperblocks} {
		for _, device := range devices {
			some, err := look(device)
			if err != nil {
				return nil, fmt.Errorf("list file systems on %q: %w", d.Name, err)
			}
			found = append(found, some...)
		}
	}
	return found, nil
}

// superblockDirs are the drivers that have a directory for each superblock, called as
// its device. Some of the others in /sys/fs let users make directories.
var superblockDirs = []string{"ext4", "xfs", "f2fs", "erofs", "nilfs2"}

// ownSuperblocks lists the superblocks that have the device's number.
func (s sysfs) ownSuperblocks(d Device) ([]FileSystem, error) {
	var found []FileSystem
	for _, driver := range superblockDirs {
		dir := filepath.Join("/sys/fs", driver, d.Name)
		if pathExists(s.pathAt(dir)) {
			found = append(found, FileSystem{Type: driver, Number: d.Number, Evidence: dir})
		}
	}
	return found, nil
}

// btrfsSuperblocks lists the file systems of several devices that the device belongs to.
func (s sysfs) btrfsSuperblocks(device Device) ([]FileSystem, error) {
	ids, err := listNames(s.pathAt("sys/fs/btrfs"))
	if err != nil {
		return nil, err
	}
	var found []FileSystem
	for _, id := range ids {
		dir := path.Join("/sys/fs/btrfs", id, "devices")
		members, err := listNames(s.pathAt(dir))
		if err != nil {
			return nil, err
		}
		if slices.Contains(members, device.Name) {
			found = append(found, FileSystem{Type: "btrfs", Members: members, Evidence: path.Join(dir, device.Name)})
		}
	}
	return found, nil
}

// journalSuperblocks lists the file systems whose external journal is on the device. The
// journal of a file system that has it inside is called "rbd3-8".
func (s sysfs) journalSuperblocks(device Device) ([]FileSystem, error) {
	evidence := "/proc/fs/jbd2/" + device.Name
	if !pathExists(s.pathAt(evidence)) {
		return nil, nil
	}
	owners, err := listNames(s.pathAt("sys/fs/ext4"))
	if err != nil {
		return nil, err
	}
	for _, name := range owners {
		owner, err := s.readDevice(name)
		if err != nil {
			continue
		}
		task := path.Join("/sys/fs/ext4", name, "journal_task") // names the thread that writes its journal
		pid, err := readText(s.pathAt(task))
		if err != nil || !isDecimal(pid) { // 0 if the kernel's threads do not show
			continue
		}
		if command, err := readText(s.pathAt("proc/" + pid + "/comm")); err == nil && command == "jbd2/"+device.Name {
			return []FileSystem{{Type: "ext4", Number: owner.Number, Journal: true, Evidence: task}}, nil
		}
	}
	return []FileSystem{{Type: "ext4", Journal: true, Evidence: evidence}}, nil
}

// UserKind is a way in which the kernel itself uses a block device.
type UserKind string

// The ways.
const (
	Swap     UserKind = "swap"     // swap space on the device
	SwapFile UserKind = "swapfile" // a swap file on a file system that is on the device
	Stacked  UserKind = "stacked"  // another block device made of it: dm, md, bcache
)

// User is a part of the kernel that uses a block device.
type User struct {
	Kind     UserKind
	Device   Device // the one above, for Stacked; the one used, else
	Path     string // of the swap space, as /proc/swaps has it
	Evidence string // the file that shows this
}

// Users lists which parts of the kernel use the device, its partitions, or the
// disk that it is a partition of. File systems and loop devices are not among
// them, see FileSystems and Backing.
func (s Sys) Users(d Device) ([]User, error) {
	files := s.newSysfs()
	devices, err := files.diskFamily(d)
	if err != nil {
		return nil, fmt.Errorf("list users of %q: %w", d.Name, err)
	}
	swaps, err := readText(files.pathAt("proc/swaps"))
	// A kernel without swap has no such file.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list users of %q: %w", d.Name, err)
	}
	var users []User
	for _, a := range parseSwaps(swaps) {
		if on, ok := files.swapOn(a, devices); ok {
			kind := Swap
			if a.isFile {
				kind = SwapFile
			}
			users = append(users, User{Kind: kind, Device: on, Path: a.path, Evidence: "/proc/swaps"})
		}
	}
	for _, device := range devices {
		// Without the directory the device has gone, and no device is made of it.
		above, _ := os.ReadDir(files.attributePath(device.Name, "holders"))
		for _, e := range above {
			if made, err := files.readDevice(e.Name()); err == nil {
				evidence := path.Join("/sys/class/block", device.Name, "holders", e.Name())
				users = append(users, User{Kind: Stacked, Device: made, Evidence: evidence})
			}
		}
	}
	return users, nil
}

// Backing is the file or device behind a loop device.
type Backing struct {
	File   string // path as the kernel knows it now; may be out of reach, end in " (deleted)"
	Number Number // file system that the file lies on
	Ino    uint64
	// Device is the number of the block device that is in the file's place;
	// zero for an ordinary file.
	Device Number
	// Autoclear is whether the kernel releases the loop device by itself as soon as
	// its last user closes it.
	Autoclear bool
}

// Backing returns the file or device behind a loop device. ErrNotAttached: it is free. ErrNoAnswer: the file system of
// the file hangs; File is filled in even then.
func (s Sys) Backing(d Device) (Backing, error) {
	b, err := s.readBacking(d)
	if err != nil {
		return b, fmt.Errorf("read what is behind %q: %w", d.Name, err)
	}
	return b, nil
}

func (s Sys) readBacking(device Device) (Backing, error) {
	if device.Kind != Loop || device.Parent != "" {
		return Backing{}, errors.New("not a loop device")
	}
	file, err := s.newSysfs().readAttribute(device.Name, "loop/backing_file")
	if errors.Is(notFoundError(err), ErrNotFound) {
		return Backing{}, ErrNotAttached
	}
	if err != nil {
		return Backing{}, err
	}
	loop, err := callWithin(&deviceCalls, "status of "+device.callKey(), func() (sys.Loop, error) {
		fd, err := s.openDevice(device, false)
		if err != nil {
			return sys.Loop{}, err
		}
		defer fd.Close()
		return sys.LoopFD{FD: fd}.LoopStatus()
	})
	if errors.Is(err, sys.ENXIO) {
		return Backing{}, ErrNotAttached
	}
	return Backing{
		File: file, Number: Number{loop.Major, loop.Minor}, Ino: loop.Ino,
		Device: Number{loop.RdevMajor, loop.RdevMinor}, Autoclear: loop.Autoclear,
	}, err
}
