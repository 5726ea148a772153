// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"kubediag.org/kubediag/internal/linux/mountns"
)

// These are the messages of the two processes. Paths are bytes of any kind, which a
// string of JSON cannot hold.

// request is the input of the process that asks. The questions of one group are about one file system, and follow one
// another.
type request struct {
	Groups [][]question
	// Room is how many threads more may wait for file systems of one owner, by owner; of all others it is RoomElse.
	Room     map[string]int
	RoomElse int
	Bind     bool // there is a question with Bind
}

// question is a target whose mount has been found.
type question struct {
	Target    int
	Own       bool // the mount is in the process' own namespace
	Namespace mountns.Namespace
	Point     []byte
	Unique    uint64 // number of the mount, see mount.ID
	Reused    int
	Local     bool // the file system is the kernel's own, see mountns.MayHang
	Below     []byte
	Bind      bool
	Owner     string
}

// reply is one message of that process, of two kinds.
type reply struct {
	Overdue *overdue `json:",omitempty"`
	Answer  *Answer  `json:",omitempty"`
}

// overdue reports that an answer is late.
type overdue struct {
	Target   int
	Question string
	Thread   int  // that waits
	Way      bool // for the way to the mount, and not for its file system
	Write    bool // the file system has answered everything else
	Stat     Stat // the kernel's cache of the probed file
}
