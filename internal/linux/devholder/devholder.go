// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package devholder finds the holders of a block device, or of a file system that is on none, by its number: its mounts in
// every mount namespace of the machine, and everything that keeps it in use without a mount: open files, working directories,
// programs, detached mount trees, overlays, loop devices, swap, other devices made of it.
//
// It changes nothing and keeps nothing open. No thread of the calling process waits for a file system: a process that
// can be lost inspects everything that may hang, in limited time. A device that is busy without a known holder is
// reported as busy, with the coverage of the search and the holders that are still possible.
//
// It rests on packages blockdev and mountns, and on proc(5) for the descriptors, links and maps of processes.
package devholder

import (
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Kind says in which way something holds a device.
type Kind string

// The kinds, in the order of a Report.
const (
	Mount            Kind = "mount"             // a mount in some mount namespace
	OpenFile         Kind = "open file"         // a descriptor of a file on it
	WorkingDirectory Kind = "working directory" // of a process
	RootDirectory    Kind = "root directory"    // of a process
	Program          Kind = "program"           // a process runs a file on it
	Mapping          Kind = "mapping"           // a process has a file on it in its memory
	DetachedMount    Kind = "detached mount"    // a descriptor of a mount that is in no namespace
	OverlayLayer     Kind = "overlay layer"     // an overlay is made of directories on it
	LoopDevice       Kind = "loop device"       // another device is a file on it, or it itself
	RawOpen          Kind = "raw open"          // a descriptor of the device itself: no mount waits for it, a detach may
	Swap             Kind = "swap"              // swap space on it, or in a file on it
	StackedDevice    Kind = "stacked device"    // another device is made of it: dm, md
	Journal          Kind = "journal"           // the journal of a file system on another device
)

// kindNames is the order of a Report.
var kindNames = []Kind{
	Mount, OpenFile, WorkingDirectory, RootDirectory, Program, Mapping, DetachedMount,
	OverlayLayer, LoopDevice, RawOpen, Swap, StackedDevice, Journal,
}

// Holder is one thing that holds a device.
type Holder struct {
	Kind Kind
	// Mount is the mount, for Mount and OverlayLayer. Its namespace has a PID
	// where a process or thread is in it.
	Mount mountns.Mount
	// NamespaceHolders keep the mount's namespace alive; empty if they were not found.
	NamespaceHolders []mountns.Holder
	// PIDs are the processes concerned, ascending: processes among NamespaceHolders, or processes that have the file.
	PIDs []int
	// Through is the mount by which a process has the file; zero if that is not known, or in no namespace.
	Through mountns.Mount
	// Path is where: the mount point, the file as the kernel names it to its
	// process (after a lazy unmount relative to the mount), or the device's node.
	Path string
	// Detail says more in words.
	Detail string
	// File is the file behind a loop device, as the kernel names it.
	File string `json:"-"`
	// Inferred: this was concluded from a path that no longer exists. It explains nothing: Hidden is filled in all the
	// same.
	Inferred bool
}

// Report says who holds a device.
type Report struct {
	Device blockdev.Device
	// Busy is the kernel's answer to a claim of the device, before and, if nothing explained the answer, again after
	// the search. If it did not answer, Untested is the reason, and Busy is set if anything was found, as for a file system
	// that is on no device.
	Busy        bool
	Untested    error
	FileSystems []blockdev.FileSystem
	// Holders are in the order of the kinds.
	Holders []Holder
	// Hidden lists possible unseen holders. It is not empty if the device is busy, or was not tested, or a file system
	// on it is alive, and Holders do not explain that.
	Hidden   []string
	Coverage Coverage `json:"Looked"`
}

// Coverage is the extent of the search: it distinguishes a search that found nothing from a search that did not take
// place.
type Coverage struct {
	Mounts mountns.Survey // the pass over all namespaces
	// Processes: the search covers their files, and not only their namespaces, because mounts alone explain too little.
	Processes bool
	// Threads: the search also covers threads that are no processes.
	Threads bool
	// Tasks and Links are how many processes and threads were inspected, and how many of their descriptors, directories
	// and programs.
	Tasks, Links int
	// Denied counts processes that may not, or could not, be inspected. Unanswered counts processes that did not answer
	// in time, or were left out as others did not.
	Denied     int
	Unanswered int `json:"Stuck"`
	// Unread counts processes and threads with more descriptors than were inspected.
	Unread int
	// Unnamed counts the holders beyond the most that are named.
	Unnamed int
	// Overlays and Loops are how many of either were inspected. Unplaced counts overlays with a layer for which the
	// search was impossible.
	Overlays, Unplaced, Loops int
	// SilentLoops counts loop devices whose file could not be placed, because its file system does not answer.
	SilentLoops int
}

// String says it in one line.
func (l Coverage) String() string {
	parts := []string{fmt.Sprintf("%d mounts in %d mount namespaces (%s)", l.Mounts.Mounts, l.Mounts.Namespaces, l.Mounts.Backend)}
	if l.Processes {
		what := "processes"
		if l.Threads {
			what = "processes and threads"
		}
		parts = append(parts, fmt.Sprintf("%d descriptors and directories of %d %s, and their memory maps", l.Links, l.Tasks, what),
			fmt.Sprintf("%d loop devices", l.Loops), fmt.Sprintf("%d overlays", l.Overlays))
	}
	if n := max(l.Denied, l.Mounts.Denied); n > 0 {
		parts = append(parts, countProcesses(n)+" may not be looked into")
	}
	if l.Unread > 0 {
		parts = append(parts, "not all descriptors of "+countProcesses(l.Unread)+" that have very many")
	}
	if l.SilentLoops == 1 {
		parts = append(parts, "1 loop device over a file that does not answer")
	}
	if l.SilentLoops > 1 {
		parts = append(parts, fmt.Sprintf("%d loop devices over files that do not answer", l.SilentLoops))
	}
	if l.Unanswered > 0 {
		parts = append(parts, countProcesses(l.Unanswered)+" did not answer")
	}
	return strings.Join(parts, ", ")
}

func countProcesses(processes int) string {
	if processes == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", processes)
}
