// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire is what the host and the guest of a virtual machine say to each other, as gob values over a virtio port.
// It is for tests alone.
package wire

import "time"

// Port is the name of the virtio port.
const Port = "kubediag.vm"

// Root, Modules and Files are the serial numbers of the disks that every machine has.
const (
	Root    = "root"
	Modules = "modules"
	Files   = "files"
)

// Boot is what the guest finds in its initramfs, as /boot.gob.
type Boot struct {
	Drivers []string          // kernel modules that reach the disks, in the order in which they are loaded
	Modules []string          // kernel modules that are loaded when the root file system is there
	Links   map[string]string // path in the guest to the name of a file or directory on the disk of files
	Init    []string          // process 1 and its arguments; none: the guest's own
}

// Hello is the first word of the guest.
type Hello struct {
	Release string // of the kernel
	Failed  string // empty if all is in place
}

// Call asks the guest to run a program.
type Call struct {
	ID    uint64
	Args  []string
	Dir   string
	Env   []string      // added to the guest's own
	Limit time.Duration // after which the program and all of its process group are ended; 0: none
}

// Answer is a piece of a program's output, or its end.
type Answer struct {
	ID     uint64
	Output []byte
	Done   bool
	Status int    // exit status where Done; -1 where a signal ended it
	Failed string // why the program did not start or did not end by itself
}
