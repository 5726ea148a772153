// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// Verdict is the decision about a mount.
type Verdict struct {
	// Code is the fault; empty: healthy, as far as could be seen.
	Code fault.Code
	// Reasons are the sentences that prove the fault, the deciding one first.
	Reasons []string
	// UnknownReason says why nothing can be said; empty: the mount was judged.
	UnknownReason string
}

// Reason is the sentence that decided; empty if there is no fault.
func (v Verdict) Reason() string {
	if len(v.Reasons) == 0 {
		return ""
	}
	return v.Reasons[0]
}

// broken is the verdict of a fault.
func broken(code fault.Code, format string, args ...any) Verdict {
	return Verdict{Code: code, Reasons: []string{fmt.Sprintf(format, args...)}}
}

// Judge decides about a volume from evidence alone, in this order: does it answer at all; can a container be started with
// it; is it what the driver has staged.
func Judge(e Evidence) Verdict {
	if e.Mount.ID == 0 {
		return Verdict{UnknownReason: fmt.Sprintf("nothing is mounted at %q", e.Point)}
	}
	root := judgeAnswer(e.Answer, e.countsLinks())
	switch {
	case root.UnknownReason != "":
		return root
	case e.Plugin == HostPathPlugin:
		if root.Code == "" && e.below() != "" {
			return judgeHostPath(e)
		}
		return root
	case root.Code == "" || root.Code == fault.DeletedVolumeSource:
		if v := compareWithStaged(e); v.Code != "" {
			v.Reasons = append(v.Reasons, root.Reasons...)
			return v
		}
	}
	return root
}

// JudgeAnswer decides about a mount from its answer, if nothing else is known of it.
func JudgeAnswer(a probe.Answer) Verdict {
	return judgeAnswer(a, !strings.HasPrefix(a.FSType, "fuse"))
}

// judgeAnswer decides about a mount from the answer of its root. countsLinks is whether the file system is known to count
// links.
func judgeAnswer(a probe.Answer, countsLinks bool) Verdict {
	switch a.State {
	case probe.Disconnected:
		if a.Errno == sys.ESHUTDOWN {
			return broken(fault.DisconnectedFUSE, "the daemon of the file system answers that its session with the server was ended: %s", cause(a))
		}
		return broken(fault.DisconnectedFUSE, "the connection to the daemon of the file system is gone: %s", cause(a))
	case probe.Hung:
		if a.Took == 0 {
			return broken(fault.HungMount, "the file system does not answer: who has asked it before still waits")
		}
		return broken(fault.HungMount, "the file system has not answered for %s", a.Took.Round(100*time.Millisecond))
	case probe.Stale:
		if a.Errno == sys.EACCES {
			return broken(fault.StaleFileHandle, "the server of the file system lets this node at the directory no more: %s", cause(a))
		}
		return broken(fault.StaleFileHandle, "the server of the file system does not know the directory any more: %s", cause(a))
	case probe.Missing:
		return broken(fault.DeletedVolumeSource, "the file system says that the root of the mount is no more: %s", cause(a))
	case probe.Alive:
		return judgeAlive(a, countsLinks)
	}
	return Verdict{UnknownReason: cmp.Or(describeAnswer(a), "it was not asked")}
}

// judgeAlive decides whether a directory or file that answers still has a name, so that a container can be given it.
func judgeAlive(a probe.Answer, countsLinks bool) Verdict {
	what := "directory"
	if a.Stat.Fresh && !a.Stat.Dir {
		what = "file"
	}
	switch {
	case a.Bindable == probe.No && a.Deleted:
		return broken(fault.DeletedVolumeSource, "the %s has lost its name (it was deleted, renamed or replaced): it answers, but the "+
			"kernel refuses to bind it, so that no container can start with it", what)
	case a.Bindable == probe.No:
		return broken(fault.DeletedVolumeSource, "the kernel refuses to bind the %s, as it does where a directory above has lost "+
			"its name (was deleted, renamed or replaced): it answers, but no container can start with it", what)
	case a.Deleted && a.Bindable != probe.Yes:
		return broken(fault.DeletedVolumeSource, "the %s has lost its name (it was deleted, renamed or replaced): it answers, but no "+
			"container can start with it", what)
	case a.Stat.Fresh && a.Stat.Nlink == 0 && (countsLinks || a.Deleted):
		return broken(fault.DeletedVolumeSource, "the %s was deleted: it answers, but its link count is 0", what)
	}
	return Verdict{}
}

// compareWithStaged decides whether a volume that answers is what the driver has staged.
func compareWithStaged(e Evidence) Verdict {
	at := e.location()
	switch {
	case at.onNodeDisk:
		return broken(fault.DeletedVolumeSource, "data is being split: the pod has a directory of the node's own disk (%s, device "+
			"%s) that the volume is mounted over; what the pod writes does not get into the volume", e.Mount.FSType, deviceOf(e.Mount.Mount))
	case !at.known || !e.isStagedDevice():
		return Verdict{}
	case e.ExpectedAnswer.State == probe.Missing:
		return broken(fault.DeletedVolumeSource, "the volume has no directory %q any more: it was deleted or renamed", at.below)
	case e.replaced():
		return broken(fault.DeletedVolumeSource, "the directory %q of the volume was replaced: it is inode %d by now, and the pod "+
			"has inode %d", at.below, e.ExpectedAnswer.Stat.Inode, e.Answer.Stat.Inode)
	}
	return Verdict{}
}

// judgeHostPath decides about a hostPath whose mount answers, by what is at the path itself. A path that could not be
// asked is no fault.
func judgeHostPath(e Evidence) Verdict {
	a, spec, want := e.ExpectedAnswer, e.spec.hostPath, corev1.HostPathUnset
	if spec != nil && spec.Type != nil {
		want = *spec.Type
	}
	switch {
	case a.State == probe.Missing && podinfo.CreatesHostPath(spec):
		return Verdict{} // it is made when the container is started
	case a.State == probe.Missing:
		return broken(fault.MissingBindSource, "there is no %q on the file system that is mounted at %q, and the pod's spec wants a %s", e.Point,
			e.Mount.Point, want)
	case a.State == probe.Alive && want == corev1.HostPathDirectory && !a.Stat.Dir:
		return broken(fault.SourceTypeMismatch, "%q is no directory, and the pod's spec wants one", e.Point)
	case a.State == probe.Alive && want == corev1.HostPathFile && a.Stat.Dir:
		return broken(fault.SourceTypeMismatch, "%q is a directory, and the pod's spec wants a file", e.Point)
	}
	v := judgeAnswer(a, false)
	v.UnknownReason = ""
	return v
}

// copyEvidence is what judgeCopy decides from.
type copyEvidence struct {
	answer probe.Answer
	// source is what belongs in the copy's place; nil if that is not known.
	source *Source
	// countsLinks is whether the file system is known to count links, unstableInodes whether it makes up inode numbers.
	countsLinks, unstableInodes bool
	// onNodeDisk is whether the copy is of the directory of the node's own disk that the volume covers.
	onNodeDisk bool
}

// judgeCopy decides about a copy of a volume: does it answer; is it still what belongs there.
func judgeCopy(e copyEvidence) Verdict {
	root := judgeAnswer(e.answer, e.countsLinks)
	switch {
	case root.UnknownReason != "" || root.Code != "":
		return root
	case e.onNodeDisk:
		return broken(fault.DeletedVolumeSource, "data is being split: it is a directory of the node's own disk, which the volume covers")
	case e.replaced():
		return broken(fault.DeletedVolumeSource, "%q is another directory now (inode %d) than the one that is mounted (inode %d)", e.source.Path,
			e.source.Inode, e.answer.Stat.Inode)
	}
	return Verdict{}
}

// replaced reports whether the name of the copy's directory means another one of the same file system by now.
func (e copyEvidence) replaced() bool {
	own := e.answer.Stat
	return !e.unstableInodes && e.source != nil && own.Fresh && e.source.Device == (device{own.Major, own.Minor}).String() &&
		e.source.Inode != own.Inode
}

// cause is the error of an answer in words.
func cause(a probe.Answer) string {
	if a.Errno == 0 {
		return string(a.State)
	}
	return a.Errno.Error()
}

// describeAnswer is the state of an answer in words, and its error.
func describeAnswer(a probe.Answer) string {
	text, known := stateWords[a.State]
	if !known {
		text = string(a.State)
	}
	if a.Errno == 0 {
		return text
	}
	return fmt.Sprintf("%s: %v", text, a.Errno)
}

// stateWords are the states that no fault follows from, as people say them.
var stateWords = map[probe.State]string{
	probe.Denied: "it may not be asked", probe.Unasked: "it could not be asked", probe.Broken: "it answers with an error",
	probe.Vanished: "it has gone meanwhile",
}
