// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// judgeAnswers decides about a bind whose file system was asked. A volume that is itself not right is judged as a volume,
// and so are the binds of it.
func judgeAnswers(state mount.State, a *answers) (Verdict, string) {
	bind := a.Bind
	if why := a.judgedWithVolume(); why != "" {
		return OfVolume, why
	}
	switch {
	case a.Volume != nil && a.Volume.State != probe.Alive:
		return Unproven, fmt.Sprintf("the mount at %q, which its source lies on, could not be judged: %s", a.Volume.ID.Point, describeAnswer(*a.Volume))
	case bind.State == probe.Missing:
		return Stale, fmt.Sprintf("the source was deleted: the file system says that the root of the mount no longer exists: %v", bind.Errno)
	case bind.State == probe.Stale && bind.Errno == sys.ESTALE:
		return Stale, fmt.Sprintf("the source was deleted or replaced: the server no longer knows the root of the mount: %v", bind.Errno)
	case bind.State != probe.Alive:
		return Unproven, fmt.Sprintf("it could not be judged: %s", describeAnswer(bind))
	case bind.Bindable == probe.No:
		return Stale, "the name of the mount's root is deleted: the file system answers, but the kernel refuses to bind it, so that no container can " +
			"be started with it"
	case state.Deleted && state.Gone:
		return Stale, "the root of the mount is deleted: its link count is 0"
	case a.sourceReplaced() && a.Unstable:
		return Unproven, fmt.Sprintf("the file system of type %q gives another inode number every time, so a replaced source cannot be seen", state.FSType)
	case a.sourceReplaced():
		return Stale, fmt.Sprintf("the source was deleted or moved away, and the subPath names another file: inode %d is bound, and inode %d is there now",
			bind.Stat.Inode, a.Source.Stat.Inode)
	case bind.Bindable == probe.Unknown && bind.Deleted:
		return Unproven, fmt.Sprintf("the kernel marks the root of the mount as deleted, and whether it can be bound is not known: %s",
			strings.Join(bind.Evidence, "; "))
	}
	return Alive, "the source is alive"
}

// judgedWithVolume says why the family of volumes judges the bind; empty: it does not.
func (a *answers) judgedWithVolume() (why string) {
	switch {
	case a.OfVolume && (a.Volume.State != probe.Alive || a.Volume.Bindable == probe.No ||
		a.Bind.ID.Major != a.Volume.ID.Major || a.Bind.ID.Minor != a.Volume.ID.Minor): // the bind is of another file system, as far as it was seen
		return "the volume is judged as a whole"
	case a.VolumeGone && (a.Bind.State == probe.Disconnected || a.Bind.State == probe.Hung):
		return "its volume is not mounted any more, and the bind is judged as the last mount of that"
	}
	return ""
}

// areMissing reports whether a file system that decides about the bind was not asked, or has not answered.
func (a *answers) areMissing() bool {
	return a != nil && slices.ContainsFunc([]*probe.Answer{&a.Bind, a.Volume, a.Source}, func(of *probe.Answer) bool {
		return of != nil && of.State.Unanswered()
	})
}

// sourceReplaced reports whether the subPath names another file of the same file system than is bound.
func (a *answers) sourceReplaced() bool {
	return a.comparable() && a.Source.Stat.Inode != a.Bind.Stat.Inode
}

// comparable reports whether both have said just now which file they are.
func (a *answers) comparable() bool {
	return a.Source != nil && a.Source.State == probe.Alive && a.Bind.State == probe.Alive && a.Source.Stat.Fresh && a.Bind.Stat.Fresh &&
		a.Source.Stat.Major == a.Bind.Stat.Major && a.Source.Stat.Minor == a.Bind.Stat.Minor
}

// showsVolume reports whether the bind is of the root of the pod's volume, while its subPath names something else or nothing.
func (a *answers) showsVolume() bool {
	if !a.OfVolume || a.Source == nil || a.Volume == nil || a.relation() == sameFile {
		return false
	}
	volume, bind := a.Volume.Stat, a.Bind.Stat
	return volume.Fresh && bind.Fresh && volume.Major == bind.Major && volume.Minor == bind.Minor && volume.Inode == bind.Inode
}

// relation is how the bind compares with the entry that the subPath names now.
func (a *answers) relation() relation {
	switch {
	case a.comparable() && a.Source.Stat.Inode == a.Bind.Stat.Inode:
		return sameFile
	case a.Source != nil && a.Source.State == probe.Alive:
		return differentInode
	case a.Source != nil && a.Source.State == probe.Missing && a.Source.Errno != sys.EXDEV: // a link that leads out of the mount may lead back
		return entryAbsent
	}
	return unknownRelation
}

// describeAnswer is an answer in words.
func describeAnswer(a probe.Answer) string {
	switch {
	case a.Errno != 0:
		return a.Errno.Error()
	case a.State == probe.Hung:
		return "it does not answer"
	case a.State == probe.Silent:
		return "it has not answered the first time, and a second look decides"
	case len(a.Evidence) > 0:
		return strings.Join(a.Evidence, "; ")
	}
	return strings.ToLower(string(a.State))
}
