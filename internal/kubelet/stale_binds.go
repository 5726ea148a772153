// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/sys"
)

// errReplacesUnknown is returned if the program does not show whether a kubelet renews subPath binds.
var errReplacesUnknown = errors.New("not known whether this kubelet renews subPath binds")

// ReplacesStaleBinds reports whether this kubelet itself replaces a subPath bind of a file system of this machine whose
// source is another one by now: Kubernetes 1.19 and later, and releases with the back-port. It is read from the
// kubelet's own program, once per process: at most 1 GiB of it. An error counts as no: there is no kubelet process, or
// its program has no known text. Habits say more, of other file systems, too.
func (n *Node) ReplacesStaleBinds() (bool, error) {
	return n.hasMarker(replacesMarker, bindsMarker, errReplacesUnknown)
}

// Habits are the habits of one kubelet, as its program shows them.
type Habits struct {
	has [markerCount]bool
	err error // why no habit is known
}

// Habits reads the program of this kubelet, as ReplacesStaleBinds does.
func (n *Node) Habits() (h Habits) {
	if _, h.err = n.ReplacesStaleBinds(); h.err == nil {
		h.has, h.err = n.programMarkers()
	}
	return h
}

// Habit is the reaction of a kubelet to a subPath bind that is out of date.
type Habit string

// Habits.
const (
	// HabitUnknown: it is not known.
	HabitUnknown Habit = ""
	// Renews: it unmounts the bind, and makes another one if a container is to be started.
	Renews Habit = "Renews"
	// Fails: it keeps the bind, or fails on it each time.
	Fails Habit = "Fails"
)

// StaleBind has the facts of such a bind on which the reaction of a kubelet rests.
type StaleBind struct {
	// FSType is the type of the file system, as mountinfo has it.
	FSType string
	// Errno is the error of lstat(2) of the bind; 0: it does not fail.
	Errno sys.Errno
	// Unchanged is whether the subPath names the very file that is bound.
	Unchanged bool
}

// habit is one row of the reactions of kubelets. The first row that fits decides.
type habit struct {
	types  []string // of the file system, without the subtype; nil: all
	errnos []sys.Errno
	// marker is in the program of a kubelet with the habit with; a kubelet without the marker has the habit without.
	marker        programMarker
	with, without Habit
	// since is the release that has brought the marker, for people.
	since string
}

// Errors for which a kubelet takes a mount for corrupted (IsCorruptedMnt of k8s.io/mount-utils). The errors of moreCorrupted
// have come one after the other since 1.22.
var (
	corrupted     = []sys.Errno{sys.ESTALE, sys.ENOTCONN, sys.EIO, sys.EACCES}
	moreCorrupted = []sys.Errno{sys.EHOSTDOWN, sys.EAGAIN, sys.ENODEV}
	noErrno       = []sys.Errno{0}
	absent        = []sys.Errno{sys.ENOENT}
	localTypes    = []string{"tmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"}
	shares        = []string{"cifs", "smb3"}
)

// habitsAtStart are the habits of kubelets before they create a container (PrepareSafeSubpath).
var habitsAtStart = []habit{
	{localTypes, noErrno, replacesMarker, Renews, Fails, "1.19"},
	// Before, umount(8) is called first, which a file system that waits for its server may refuse, or never end.
	{nil, noErrno, lazyMarker, Renews, HabitUnknown, "1.37"},
	{nil, corrupted, corruptedMarker, Renews, Fails, "1.37"},
	{nil, moreCorrupted, corruptedMarker, Renews, Fails, "1.37"},
	// The first try fails and unmounts the bind; the second one makes a new bind.
	{shares, absent, staleHandleMarker, Renews, Fails, "1.24"},
	// With FUSE that depends on whether access(2) fails, too: on the daemon.
	{nil, absent, staleHandleMarker, HabitUnknown, Fails, "1.24"},
}

// habitsAtEnd are the habits of kubelets before they unmount the volume of a pod that goes (CleanSubPaths).
var habitsAtEnd = []habit{
	{nil, slices.Concat(noErrno, corrupted), bindsMarker, Renews, HabitUnknown, ""},
	{nil, moreCorrupted, corruptedMarker, Renews, HabitUnknown, "1.37"},
	{shares, absent, staleHandleMarker, Renews, Fails, "1.24"},
	{nil, absent, staleHandleMarker, HabitUnknown, Fails, "1.24"},
}

// AtStart returns the habit of the kubelet for such a bind when it starts the container, and says so in a sentence for people.
func (h Habits) AtStart(bind StaleBind) (Habit, string) {
	does, since := h.findHabit(habitsAtStart, bind)
	switch {
	case h.err != nil:
		return HabitUnknown, h.err.Error()
	case bind.Unchanged:
		return Fails, "this kubelet replaces binds that are out of date, but not this one: the subPath names the very file that is bound"
	case does == Renews:
		return Renews, "this kubelet replaces it itself at the container's next start"
	case does == Fails && bind.Errno == 0:
		return Fails, fmt.Sprintf("this kubelet keeps such a bind at the container's next start (Kubernetes before %s)", since)
	case does == Fails:
		return Fails, fmt.Sprintf("this kubelet fails on such a bind at each start of the container: the bind answers %q", bind.Errno.Error())
	}
	return HabitUnknown, fmt.Sprintf("%v of type %q%s", errReplacesUnknown, bind.FSType, bind.answer())
}

// AtEnd returns whether the kubelet unmounts such a bind when the pod goes, and says so in a sentence for people.
func (h Habits) AtEnd(bind StaleBind) (Habit, string) {
	does, _ := h.findHabit(habitsAtEnd, bind)
	switch {
	case h.err != nil:
		return HabitUnknown, h.err.Error()
	case does == Renews:
		return Renews, "this kubelet unmounts it itself when the pod goes"
	case does == Fails:
		return Fails, fmt.Sprintf("this kubelet never unmounts such a bind, so the pod does not go: the bind answers %q", bind.Errno.Error())
	}
	return HabitUnknown, fmt.Sprintf("not known whether this kubelet unmounts a subPath bind of type %q%s", bind.FSType, bind.answer())
}

func (b StaleBind) answer() string {
	if b.Errno == 0 {
		return ""
	}
	return fmt.Sprintf(" that answers %q", b.Errno.Error())
}

// findHabit finds the row that decides.
func (h Habits) findHabit(rows []habit, bind StaleBind) (does Habit, since string) {
	base, _, _ := strings.Cut(bind.FSType, ".")
	for _, row := range rows {
		if !slices.Contains(row.errnos, bind.Errno) || row.types != nil && !slices.Contains(row.types, base) {
			continue
		}
		if does = row.without; h.has[row.marker] {
			does = row.with
		}
		return does, row.since
	}
	return HabitUnknown, ""
}
