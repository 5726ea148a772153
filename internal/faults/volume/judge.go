// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// verdict is what an answer says about a mount: the fault, if it is one, and why.
type verdict struct {
	code fault.Code
	why  string
}

// judgeRoot says what the answer of a mount's root means by itself. ok is false where it says nothing. counts is whether
// the file system is known to count links.
func judgeRoot(a probe.Answer, counts bool) (d verdict, ok bool) {
	switch a.State {
	case probe.Disconnected:
		if a.Errno == sys.ESHUTDOWN {
			return verdict{fault.DisconnectedFUSE, "the daemon of the file system answers that its session with the server was ended: " +
				cause(a)}, true
		}
		return verdict{fault.DisconnectedFUSE, "the connection to the daemon of the file system is gone: " + cause(a)}, true
	case probe.Hung:
		if a.Took == 0 {
			return verdict{fault.HungMount, "the file system does not answer: who has asked it before still waits"}, true
		}
		return verdict{fault.HungMount, fmt.Sprintf("the file system has not answered for %s", a.Took.Round(100*time.Millisecond))}, true
	case probe.Stale:
		if a.Errno == sys.EACCES {
			return verdict{fault.StaleFileHandle, "the server of the file system lets this node at the directory no more: " + cause(a)}, true
		}
		return verdict{fault.StaleFileHandle, "the server of the file system does not know the directory any more: " + cause(a)}, true
	case probe.Missing:
		return verdict{fault.DeletedVolumeSource, "the file system says that the root of the mount is no more: " + cause(a)}, true
	case probe.Alive:
		return judgeAlive(a, counts), true
	}
	return verdict{}, false
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
	text, known := inWords[a.State]
	if !known {
		text = string(a.State)
	}
	if a.Errno == 0 {
		return text
	}
	return fmt.Sprintf("%s: %v", text, a.Errno)
}

// inWords are states that say nothing about faults, as people say them.
var inWords = map[probe.State]string{
	probe.Denied: "it may not be asked", probe.Unasked: "it could not be asked", probe.Broken: "it answers with an error",
	probe.Vanished: "it has gone meanwhile",
}

// judgeAlive says whether what answers can be given to a container, and has a name still.
func judgeAlive(a probe.Answer, counts bool) verdict {
	what := "directory"
	if a.Stat.Fresh && !a.Stat.Dir {
		what = "file"
	}
	switch {
	case a.Bindable == probe.No && a.Deleted:
		return verdict{fault.DeletedVolumeSource, "the " + what + " has lost its name (it was deleted, renamed or replaced): it answers, but the " +
			"kernel refuses to bind it, so that no container can start with it"}
	case a.Bindable == probe.No:
		return verdict{fault.DeletedVolumeSource, "the kernel refuses to bind the " + what + ", as it does where a directory above has lost " +
			"its name (was deleted, renamed or replaced): it answers, but no container can start with it"}
	case a.Deleted && a.Bindable != probe.Yes:
		return verdict{fault.DeletedVolumeSource, "the " + what + " has lost its name (it was deleted, renamed or replaced): it answers, but no " +
			"container can start with it"}
	case a.Stat.Fresh && a.Stat.Nlink == 0 && (counts || a.Deleted):
		return verdict{fault.DeletedVolumeSource, "the " + what + " was deleted: it answers, but its link count is 0"}
	}
	return verdict{}
}

// judge decides about every volume.
func (l *look) judge(ctx context.Context) error {
	for _, v := range l.survey.Volumes {
		d, ok := l.verdictOf(v)
		if !ok {
			if v.Mount.ID != 0 && v.Answer.State != probe.Vanished {
				l.incomplete("volume %q of pod %q at %q could not be judged: %s", v.Name, v.Pod.UID, v.Point, describeAnswer(v.Answer))
			}
			if v.NoSourceReason == "" {
				v.NoSourceReason = fmt.Sprintf("the mount at %q could not be judged: %s", v.Point, describeAnswer(v.Answer))
			}
			v.notKnown = true
			continue
		}
		v.Code = d.code
		if d.code != "" {
			v.Evidence = append(v.Evidence, d.why)
		}
		if root, _ := judgeRoot(v.Answer, v.countsLinks()); root.code != "" && root.why != d.why {
			v.Evidence = append(v.Evidence, root.why)
		}
	}
	return ctx.Err()
}

// verdictOf decides about one volume, in this order: does it answer at all; can a container be started with it; is it
// what the driver has staged.
func (l *look) verdictOf(v *Volume) (verdict, bool) {
	if v.Mount.ID == 0 {
		return verdict{}, false
	}
	d, ok := judgeRoot(v.Answer, v.countsLinks())
	if !ok {
		return d, ok
	}
	if v.Plugin == HostPathPlugin {
		if d.code == "" && v.below() != "" {
			return v.judgeHostPath(), true
		}
		return d, true
	}
	if d.code == "" || d.code == fault.DeletedVolumeSource {
		if more := v.compare(); more.code != "" {
			return more, true
		}
	}
	return d, true
}

// countsLinks tells whether a link count of 0 means something. Some FUSE servers never fill it in; one that counts says
// so at the root of what is staged. The root of a file system cannot be deleted.
func (v *Volume) countsLinks() bool {
	return v.Staging != nil && v.Staging.Answer.State == probe.Alive && v.Staging.Answer.Stat.Fresh && v.Staging.Answer.Stat.Nlink > 0 &&
		(v.location.split || v.location.below != "" && deviceOf(v.Staging.Mount.Mount) == deviceOf(v.Mount.Mount))
}

// compare says whether a volume that answers is what the driver has staged.
func (v *Volume) compare() verdict {
	switch {
	case v.location.split:
		return verdict{fault.DeletedVolumeSource, fmt.Sprintf("data is being split: the pod has a directory of the node's own disk (%s, device "+
			"%s) that the volume is mounted over; what the pod writes does not get into the volume", v.Mount.FSType, deviceOf(v.Mount.Mount))}
	case !v.location.known || deviceOf(v.Staging.Mount.Mount) != deviceOf(v.Mount.Mount):
		return verdict{}
	case v.location.answer.State == probe.Missing:
		return verdict{fault.DeletedVolumeSource, fmt.Sprintf("the volume has no directory %q any more: it was deleted or renamed",
			v.location.below)}
	case v.replaced():
		return verdict{fault.DeletedVolumeSource, fmt.Sprintf("the directory %q of the volume was replaced: it is inode %d by now, and the pod "+
			"has inode %d", v.location.below, v.location.answer.Stat.Inode, v.Answer.Stat.Inode)}
	}
	return verdict{}
}

// replaced tells whether the directory's name means another directory of the same file system by now.
func (v *Volume) replaced() bool {
	now, own := v.location.answer, v.Answer
	return !v.unstableInodes && now.State == probe.Alive && own.State == probe.Alive && now.Stat.Fresh && own.Stat.Fresh &&
		now.Stat.Major == own.Stat.Major && now.Stat.Minor == own.Stat.Minor && now.Stat.Inode != own.Stat.Inode
}
