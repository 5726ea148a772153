// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctl of /proc/PID/maps that describes one area of memory (6.11), and its flags.
const (
	procMapQuery      = 0xc0686611
	queryNextArea     = 0x10 // the area at the address, or the next one after it
	queryAreasOfFiles = 0x20
)

// memoryArea is the kernel's struct procmap_query.
type memoryArea struct {
	size, flags, address                  uint64
	start, end, areaFlags                 uint64
	pageBytes, offset, inode              uint64
	major, minor, nameBytes, buildIDBytes uint32
	name, buildID                         uint64
}

// MapsFile reports whether a process has a file in its memory whose file system is wanted, by its "123/maps" below the
// process' own /proc. It costs half of the text, which the kernel writes with the path of each file. ENOTTY before 6.11.
func MapsFile(name string, wanted func(major, minor uint32) bool) (bool, error) {
	fd, err := OpenProc(name)
	if err != nil {
		return false, err
	}
	defer fd.Close()
	for area := (memoryArea{}); ; area.address = area.end {
		area.size, area.flags = uint64(unsafe.Sizeof(area)), queryNextArea|queryAreasOfFiles
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd.number), procMapQuery, uintptr(unsafe.Pointer(&area)))
		switch {
		case errno == unix.EINTR:
			area.end = area.address
		case errno == unix.ENOENT: // there is no further area
			return false, nil
		case errno != 0:
			return false, errno
		case wanted(area.major, area.minor):
			return true, nil
		}
	}
}
