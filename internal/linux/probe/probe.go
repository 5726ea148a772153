// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package probe asks mounts whether they are alive, and never hangs itself.
//
// The caller's process reads from the kernel alone: the mount table and the state of a FUSE connection. Two processes
// that can be lost (package subprocess) look up paths and send the requests to file systems, with a bounded number of
// threads. One serves the file systems that answered their last question, the other all the rest.
//
// A probe changes nothing: it checks the permission to write on a file system of the kernel's own, and writes nothing.
// It looks up nothing below a mount, unless Below is set and the mount itself has answered. It touches no other mount
// of the same file system: this can make the kernel forget directories that mounts are made of. It verifies the mount
// before and after.
//
// It decides nothing about repairs. It rests on statx(2), statfs(2), getdents(2), open_tree(2), move_mount(2), and on
// the kernel's documentation of FUSE.
package probe

import (
	"time"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// DefaultDeadline is how long a pass takes at most if nothing else is said.
const DefaultDeadline = 2 * time.Second

// Target is a mount to probe.
type Target struct {
	// Namespace is where it is mounted; the zero value is this process' own.
	Namespace mountns.Namespace
	// Point is where, absolute and clean, without symbolic links.
	Point string
	// ID is the mount; the zero value is the topmost at Point.
	ID mount.ID
	// Below is a path beneath the mount's root, relative to it. It is probed instead once the root has answered; "" is
	// the root itself. It cannot leave the mount, neither by ".." nor by a symbolic link.
	Below string
	// Bind also tests whether the file or directory can be bound elsewhere.
	Bind bool
	// Owner, such as a pod, is charged if there is no answer. The file systems of one owner that do not answer take no
	// room from those of others. Empty: no owner in particular.
	Owner string
}

// State is the outcome of a question.
type State string

// The states.
const (
	// Alive: the file system answered every question.
	Alive State = "Alive"
	// Disconnected: the server of the file system is gone, or has thrown the
	// client out (ENOTCONN, ECONNABORTED, ESHUTDOWN).
	Disconnected State = "Disconnected"
	// Hung: there was no answer by the deadline, though at least half the time was left for it. Or an NFS client has
	// waited, and given up.
	Hung State = "Hung"
	// Silent: as Hung, but no earlier pass has found it so. The answers of a busy machine are late: a pass some seconds
	// later decides. Only a Prober with TwoLooks answers so.
	Silent State = "Silent"
	// Frozen: the file system answers, and a write to it does not end: it is frozen, or its device is suspended.
	Frozen State = "Frozen"
	// Stale: the server does not know the directory any more (ESTALE), or, of
	// NFS, refuses this node (EACCES).
	Stale State = "Stale"
	// Denied: this process may not ask (EACCES, EPERM). The owner of a FUSE mount
	// may ask it, where no other user can.
	Denied State = "Denied"
	// Broken: any other error, see Answer.Errno.
	Broken State = "Broken"
	// Missing: Below does not exist, or leads out of the mount (EXDEV). Without Below: the file system reports that the
	// mount's own root is no more (ENOENT).
	Missing State = "Missing"
	// Gone: there is no such mount any more, or another one in its place.
	Gone State = "Vanished"
	// NotProbed: there was no time or no thread left to ask, or no way to do it.
	NotProbed State = "Unasked"
)

// Unanswered reports whether the file system was not asked, or has not answered: it may do so the next time.
func (s State) Unanswered() bool { return s == Hung || s == Silent || s == NotProbed }

// Tristate is an answer that may not be known.
type Tristate string

// The verdicts.
const (
	Unknown Tristate = ""
	Yes     Tristate = "yes"
	No      Tristate = "no"
)

// Stat holds the facts about the probed file or directory.
type Stat struct {
	Major, Minor uint32 // device
	Inode        uint64
	Nlink        uint32
	Dir          bool
	// Fresh: the file system itself has just answered so. Otherwise this is the kernel's cache of the mount's root.
	Fresh bool
}

// Answer holds the findings about a target.
type Answer struct {
	// Target is its index.
	Target int
	State  State
	// Errno is the error that decided; 0 if there was none.
	Errno sys.Errno
	// ID is the probed mount; the zero value if no mount was found.
	ID mount.ID
	// Stat is the zero value if nothing is known.
	Stat Stat
	// Bindable is whether it can be bound elsewhere: Unknown unless Target.Bind
	// is set and it was tried. No means that a container that wants it cannot
	// start.
	Bindable Tristate
	// Deleted is the kernel's mark: the name of the mount's root is unlinked.
	Deleted bool
	// FSType is the type, with the subtype if the kernel gives it.
	FSType string
	// ReadOnly is the mount's option, or the file system's if it answered.
	ReadOnly bool
	// Took is how long the file system took to answer, or how long the wait was.
	Took time.Duration
	// Evidence is the questions and the kernel's answers, a sentence each.
	Evidence []string
}
