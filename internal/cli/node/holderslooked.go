// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/linux/devholder"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/printable"
)

// lookedAt is what holders has looked at. If no device was named, the whole says where it looked from and what it
// passed through. Each device then says what was looked into because of it.
type lookedAt struct {
	lookedThrough
	lookedInto
	lookedFrom
}

// lookedFrom is whose host is meant.
type lookedFrom struct {
	KubeletRoot string `json:"kubeletRoot,omitempty"`
	// KubeletPID is 0 if no kubelet process was made use of, and the mount namespace is that of the shell.
	KubeletPID int `json:"kubeletPID,omitempty"`
	// MountNamespace is an inode number.
	MountNamespace uint64 `json:"mountNamespace,omitempty"`
	// NameErrors is why the container runtime could not be asked.
	NameErrors   []string `json:"nameErrors,omitempty"`
	Milliseconds float64  `json:"milliseconds,omitempty"`
	// NotLookedAt is what was not looked at and may hold a device.
	NotLookedAt []gap `json:"notLookedAt,omitempty"`
	// Notes say what the result rests on, and for what was waited.
	Notes []string `json:"notes,omitempty"`
	// blind is whether the caller lacks what it takes to see what others do.
	blind bool
}

// lookedThrough is the pass over all mount namespaces.
type lookedThrough struct {
	// Backend is "kernel", which sees all of them, or "procfs".
	Backend    string `json:"backend"`
	Namespaces int    `json:"namespaces"`
	Mounts     int    `json:"mounts"`
	// Denied counts processes whose mount namespace may not be read, Partial namespaces that were seen in part.
	Denied  int `json:"denied"`
	Partial int `json:"partial"`
	// skipped is what was not looked at because a bound was met.
	skipped []string
}

func newLookedThrough(s mountns.Survey) lookedThrough {
	return lookedThrough{s.Backend, s.Namespaces, s.Mounts, s.Denied, s.Partial, s.Skipped}
}

// lookedInto is what else was looked at: nothing where the mounts explain everything, and then Processes is false.
type lookedInto struct {
	Processes bool `json:"processes"`
	// Tasks are the processes that were looked into, and with Threads also their threads; Links what they have open.
	Tasks   int  `json:"tasks"`
	Threads bool `json:"threads"`
	Links   int  `json:"links"`
	// Locked counts processes that may not be looked into, Stuck those that did not answer in time.
	Locked   int `json:"locked"`
	Stuck    int `json:"stuck"`
	Overlays int `json:"overlays"`
	// Unplaced are overlays of which a layer could not be looked for.
	Unplaced int `json:"unplaced"`
	Loops    int `json:"loops"`
	// Unnamed counts holders beyond the most that are named.
	Unnamed int `json:"unnamed"`
}

func newLookedInto(l devholder.Looked) lookedInto {
	return lookedInto{l.Processes, l.Tasks, l.Threads, l.Links, l.Denied, l.Stuck, l.Overlays, l.Unplaced, l.Loops, l.Unnamed}
}

// text is what was looked at, from where, and what could not be.
func (l lookedAt) text() string {
	parts := []string{fmt.Sprintf("%s in %s (%s)", verb.Count(l.Mounts, "mount"), verb.Count(l.Namespaces, "mount namespace"), l.Backend)}
	if i := l.lookedInto; i.Processes {
		tasks := "processes"
		if i.Threads {
			tasks = "processes and threads"
		}
		parts = append(parts, fmt.Sprintf("what %d %s have open", i.Tasks, tasks), verb.Count(i.Overlays, "overlay"), verb.Count(i.Loops, "loop device"))
	}
	text := fmt.Sprintf("Looked at %s %s.", strings.Join(parts, ", "), l.lookedFrom.text())
	if left := l.left(); len(left) > 0 {
		text += " Not looked at: " + strings.Join(left, ", ") + "."
	}
	return text + "\n"
}

// unseen reports whether something may hold a device and was not looked at.
func (l lookedAt) unseen() bool { return len(l.NotLookedAt) > 0 }

// left is what could not be looked into by the way.
func (l lookedAt) left() (list []string) {
	if l.Locked > 0 && !l.unseen() {
		list = append(list, processes(l.Locked)+" that may not be looked into")
	}
	if l.Stuck > 0 {
		list = append(list, processes(l.Stuck)+" that did not answer")
	}
	return list
}

func processes(n int) string { return verb.Plural(n, "process", "processes") }

// text is where it was looked from.
func (l lookedFrom) text() string {
	where := fmt.Sprintf("kubelet %d", l.KubeletPID)
	if l.KubeletPID == 0 {
		where = "no kubelet process was made use of"
	}
	return fmt.Sprintf("in %.1f ms: %s, root %s, mount namespace %d",
		l.Milliseconds, where, printable.Quoted(strconv.Quote(l.KubeletRoot)), l.MountNamespace)
}
