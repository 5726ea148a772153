// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
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

// brokenVerdict is the verdict of a fault.
func brokenVerdict(code fault.Code, format string, args ...any) Verdict {
	return Verdict{Code: code, Reasons: []string{fmt.Sprintf(format, args...)}}
}

// Judge decides about a volume from evidence alone, in this order: does it answer at all; can a container be started
// with it; is it what the driver has staged.
func Judge(evidence Evidence) Verdict {
	if evidence.Mismatch.PlainAt != "" {
		return brokenVerdict(fault.DeletedVolumeSource, "data goes elsewhere: nothing is mounted at %q, and %s has that directory of the node's own "+
			"disk; what is written there does not get into the volume", evidence.Point, evidence.Mismatch.PlainAt)
	}
	if evidence.Mount.ID == 0 {
		return Verdict{UnknownReason: fmt.Sprintf("nothing is mounted at %q", evidence.Point)}
	}
	root := judgeMount(evidence.Answer, evidence.countsLinks(), evidence.Mount.Mount, evidence.Device)
	switch {
	case evidence.Origin.Inside:
		return judgeInside(evidence, root)
	case root.UnknownReason != "":
		return root
	case evidence.isPath():
		if root.Code == "" && evidence.asksPath() {
			root = judgeHostPath(evidence)
		}
	case root.Code == "" || root.Code == fault.DeletedVolumeSource:
		if v := compareWithStaged(evidence); v.Code != "" {
			v.Reasons = append(v.Reasons, root.Reasons...)
			return v
		}
		if root.Code == "" && evidence.Mismatch.Covered != "" {
			return brokenVerdict(fault.DeletedVolumeSource, "data goes elsewhere: the pod has the directory that lies hidden below %s; what the pod writes "+
				"does not get into that file system", evidence.Mismatch.Covered)
		}
		switch {
		case root.Code != "":
		case evidence.hasOtherDisk():
			root.UnknownReason = fmt.Sprintf(reasonOtherDisk, deviceOf(evidence.Mount.Mount), deviceOf(evidence.Staging.Mount.Mount), evidence.Staging.Point)
		case evidence.Mismatch.AlsoFor != "":
			root.UnknownReason = fmt.Sprintf(reasonSameDisk, deviceOf(evidence.Mount.Mount), evidence.Record, evidence.Mismatch.AlsoFor)
		}
	}
	if root.Code == "" && root.UnknownReason == "" && !evidence.wantsReadOnly() {
		root.UnknownReason = cmp.Or(readOnlyReason(evidence.Mount.Mount, evidence.Device), noWritesReason(evidence.Device))
	}
	return root
}

// JudgeAnswer decides about a mount from its answer and its line of the mount table, if nothing else is known of it.
func JudgeAnswer(a probe.Answer, m mountinfo.Mount) Verdict {
	device := deviceHealth(m)
	v := judgeMount(a, !strings.HasPrefix(a.FSType, "fuse"), m, device)
	if v.Code == "" && v.UnknownReason == "" {
		v.UnknownReason = cmp.Or(readOnlyReason(m, device), noWritesReason(device))
	}
	return v
}

// reasonOtherDisk names a mount of another volume. It does not follow which of the two is.
const reasonOtherDisk = "the pod has the file system on device %s, and the driver has mounted that on device %s for the same volume at %q: " +
	"one of them is of another volume"

// reasonSameDisk names two volumes with one disk. A driver that keeps a mount over a reboot, while devices get other names, may give a pod the
// data of another.
const reasonSameDisk = "the whole file system on device %s is mounted for two volumes, %s and %s: one of them shows the data of the other, " +
	"unless both handles name one disk"

// judgeMount decides about a mount from the answer of its root, and from what the kernel says of its file system and device.
func judgeMount(answer probe.Answer, countsLinks bool, m mountinfo.Mount, device blockdev.Health) Verdict {
	v := judgeAnswer(answer, countsLinks)
	if v.Code == "" && hasOption(m.SuperOptions, "shutdown") {
		return brokenVerdict(fault.VolumeIOError, "the kernel has shut the file system down: what is remembered of it can be read, and all "+
			"else is an I/O error until it is unmounted")
	}
	switch {
	case v.Code != "":
	case device.Suspended != "":
		v.UnknownReason = fmt.Sprintf("its device %q is suspended: all that is not in memory waits until it is resumed (dmsetup info shows its name)", device.Suspended)
	case device.Lost != "":
		v.UnknownReason = "its device is lost (" + device.Lost + "): what is remembered of the file system can be read, and all else is an I/O error"
	}
	return v
}

// judgeAnswer decides about a mount from the answer of its root. countsLinks is whether the file system is known to
// count links.
func judgeAnswer(answer probe.Answer, countsLinks bool) Verdict {
	switch answer.State {
	case probe.Disconnected:
		if answer.Errno == sys.ESHUTDOWN {
			return brokenVerdict(fault.DisconnectedFUSE, "the daemon of the file system answers that its session with the server was ended: %s", errorText(answer))
		}
		return brokenVerdict(fault.DisconnectedFUSE, "the connection to the daemon of the file system is gone: %s", errorText(answer))
	case probe.Hung:
		if answer.Took == 0 {
			return brokenVerdict(fault.HungMount, "the file system does not answer: an earlier probe still waits")
		}
		return brokenVerdict(fault.HungMount, "the file system has not answered for %s", answer.Took.Round(100*time.Millisecond))
	case probe.Silent:
		return Verdict{UnknownReason: "it has not answered the first time; a busy node may be the reason, and a second look decides"}
	case probe.Stale:
		if answer.Errno == sys.EACCES {
			return brokenVerdict(fault.StaleFileHandle, "the server no longer lets this node use the directory: %s", errorText(answer))
		}
		return brokenVerdict(fault.StaleFileHandle, "the server no longer knows the directory: %s", errorText(answer))
	case probe.Missing:
		return brokenVerdict(fault.DeletedVolumeSource, "the file system says that the root of the mount no longer exists: %s", errorText(answer))
	case probe.Broken:
		if answer.Errno == 0 || slices.Contains(ownErrors, answer.Errno) {
			return Verdict{UnknownReason: describeAnswer(answer)}
		}
		return brokenVerdict(fault.VolumeIOError, "the file system answers with an error: %s", errorText(answer))
	case probe.Alive:
		return judgeAlive(answer, countsLinks)
	}
	return Verdict{UnknownReason: cmp.Or(describeAnswer(answer), "it was not asked")}
}

// ownErrors are those that a probe gets because it lacks memory or descriptors itself. They say nothing about a volume.
var ownErrors = []sys.Errno{sys.ENOMEM, sys.EMFILE, sys.ENFILE, sys.EINTR}

// judgeAlive decides whether a directory or file that answers still has a name, so that a container can be given it.
func judgeAlive(answer probe.Answer, countsLinks bool) Verdict {
	what := "directory"
	if answer.Stat.Fresh && !answer.Stat.Dir {
		what = "file"
	}
	switch {
	case answer.Bindable == probe.No && answer.Deleted:
		return brokenVerdict(fault.DeletedVolumeSource, "the %s has lost its name (it was deleted, renamed or replaced): it answers, but the "+
			"kernel refuses to bind it, so that no container can start with it", what)
	case answer.Bindable == probe.No:
		return brokenVerdict(fault.DeletedVolumeSource, "the kernel refuses to bind the %s, as it does where a directory above has lost "+
			"its name (was deleted, renamed or replaced): it answers, but no container can start with it", what)
	case answer.Deleted && answer.Bindable != probe.Yes:
		return brokenVerdict(fault.DeletedVolumeSource, "the %s has lost its name (it was deleted, renamed or replaced): it answers, but no "+
			"container can start with it", what)
	case answer.Stat.Fresh && answer.Stat.Nlink == 0 && (countsLinks || answer.Deleted):
		return brokenVerdict(fault.DeletedVolumeSource, "the %s was deleted: it answers, but its link count is 0", what)
	}
	return Verdict{}
}

// compareWithStaged decides whether a volume that answers is what the driver has staged.
func compareWithStaged(evidence Evidence) Verdict {
	location := evidence.stagedLocation()
	switch {
	case evidence.Mismatch.UnstagedDir != "":
		return brokenVerdict(fault.DeletedVolumeSource, "data goes elsewhere: the pod has the directory %q of the node's own disk (%s, device %s), "+
			"and no volume is mounted there; what the pod writes does not get into the volume", evidence.Mismatch.UnstagedDir, evidence.Mount.FSType,
			deviceOf(evidence.Mount.Mount))
	case location.OnNodeDisk:
		return brokenVerdict(fault.DeletedVolumeSource, "data is being split: the pod has a directory of the node's own disk (%s, device "+
			"%s) that the volume is mounted over; what the pod writes does not get into the volume", evidence.Mount.FSType, deviceOf(evidence.Mount.Mount))
	case !location.Known || !evidence.isStagedDevice():
		return Verdict{}
	case evidence.Expected.Directory.State == probe.Missing:
		return brokenVerdict(fault.DeletedVolumeSource, "the volume has no directory %q any more: it was deleted or renamed", location.Below)
	case evidence.directoryReplaced():
		return brokenVerdict(fault.DeletedVolumeSource, "the directory %q of the volume was replaced: it is inode %d by now, and the pod "+
			"has inode %d", location.Below, evidence.Expected.Directory.Stat.Inode, evidence.Answer.Stat.Inode)
	}
	return Verdict{}
}

// judgeHostPath decides about a hostPath whose mount answers, by what is at the path itself.
func judgeHostPath(evidence Evidence) Verdict {
	answer, spec := evidence.Expected.Directory, evidence.spec.hostPath
	want := podinfo.HostPathType(spec)
	switch {
	case answer.State == probe.Missing && podinfo.CreatesHostPath(spec):
		return Verdict{} // it is made when the container is started
	case answer.State == probe.Missing:
		return brokenVerdict(fault.MissingBindSource, "there is no %q on the file system that is mounted at %q, and the pod's spec wants a %s", evidence.Point,
			evidence.Mount.Point, want)
	case answer.State == probe.Alive && want == corev1.HostPathDirectory && !answer.Stat.Dir:
		return brokenVerdict(fault.SourceTypeMismatch, "%q is no directory, and the pod's spec wants one", evidence.Point)
	case answer.State == probe.Alive && want == corev1.HostPathFile && answer.Stat.Dir:
		return brokenVerdict(fault.SourceTypeMismatch, "%q is a directory, and the pod's spec wants a file", evidence.Point)
	}
	return judgeAnswer(answer, false)
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
		return brokenVerdict(fault.DeletedVolumeSource, "data is being split: it is a directory of the node's own disk, which the volume covers")
	case e.directoryReplaced():
		return brokenVerdict(fault.DeletedVolumeSource, "%q is another directory now (inode %d) than the one that is mounted (inode %d)", e.source.Path,
			e.source.Inode, e.answer.Stat.Inode)
	}
	return Verdict{}
}

// directoryReplaced reports whether the name of the copy's directory means another one of the same file system by now.
func (e copyEvidence) directoryReplaced() bool {
	own := e.answer.Stat
	return !e.unstableInodes && e.source != nil && own.Fresh && e.source.Device == (device{own.Major, own.Minor}).String() &&
		e.source.Inode != own.Inode
}

// errorText is the error of an answer in words.
func errorText(a probe.Answer) string {
	if a.Errno == 0 {
		return string(a.State)
	}
	return a.Errno.Error()
}

// describeAnswer is the state of an answer in words, and its error.
func describeAnswer(answer probe.Answer) string {
	text, known := stateWords[answer.State]
	if !known {
		text = string(answer.State)
	}
	if answer.Errno == 0 {
		return text
	}
	return fmt.Sprintf("%s: %v", text, answer.Errno)
}

// stateWords are the states that no fault follows from, as people say them.
var stateWords = map[probe.State]string{
	probe.Denied: "access to it is denied", probe.NotProbed: "it could not be asked", probe.Broken: "it answers with an error",
	probe.Gone: "it is gone now", probe.Frozen: "it answers, but a write to it does not end: it is frozen, or its device is suspended",
}

// A driver's mount below the directory of the plugins may be broken while no volume of a pod is: a staging path that died before a pod got the volume
// from there, or after the driver had mounted it elsewhere. The next pod fails then. Such a mount is no volume of a pod, so it is listed as not
// judged, with the fault that it has.

// mountFaults are the faults of a mount that is of no known volume. A deleted directory hurts only the pods that have it.
var mountFaults = []fault.Code{fault.DisconnectedFUSE, fault.HungMount, fault.StaleFileHandle, fault.VolumeIOError}

// waitingVolume is a volume that a pod waits for, by its staging path.
type waitingVolume struct {
	pod    fault.Pod
	volume string
}

// judgePlugins asks the mounts of drivers on file systems that may hang of which no volume is, and takes the answers of the staging paths of healthy
// volumes.
func (p *batchProber) judgePlugins(ctx context.Context, e *enumerator, volumes []*Health) error {
	claimed := map[device]bool{}
	for _, v := range volumes {
		claimed[deviceOf(v.Evidence.Mount.Mount)] = true
		staging := v.Evidence.Staging
		if staging == nil {
			continue
		}
		claimed[deviceOf(staging.Mount.Mount)] = true
		if v.Verdict.Code == "" && v.Verdict.UnknownReason == "" {
			e.notePlugin(staging.Mount.Mount, v.Evidence.Expected.StagingRoot, waitingVolume{v.Evidence.Pod, v.Evidence.Name})
		}
	}
	var points []string
	for point, m := range e.host.visibleMounts {
		if mountinfo.Within(e.host.node.PluginsDir(), point) && isRemote(m.FSType) && !claimed[deviceOf(m)] {
			points = append(points, point)
		}
	}
	if len(points) == 0 {
		return nil
	}
	slices.Sort(points)
	waits, err := e.waitingFor(ctx)
	if err != nil {
		return err
	}
	var requests []probeRequest
	var note []func() // in the order of the points: a mount may be asked once more, and answer last
	for _, point := range points {
		of, ok := waits[point]
		if !ok && (len(e.scope.PodUIDs) > 0 || e.scope.Volume != "") {
			continue
		}
		if len(requests) == maxUnclaimed {
			e.seen.Unknown.AddGap("mounts of drivers that are of no known volume", fmt.Sprintf("there are more than %d, and the others were not asked", maxUnclaimed))
			break
		}
		m, answer := e.host.visibleMounts[point], probe.Answer{}
		requests = append(requests, probeRequest{probeTarget(of.pod.UID, e.host.withNamespace(m), "", false), func(a probe.Answer) { answer = a }})
		note = append(note, func() { e.notePlugin(m, answer, of) })
	}
	if err := p.askAll(ctx, requests); err != nil {
		return err
	}
	for _, do := range note {
		do()
	}
	return nil
}

// notePlugin lists a driver's mount as not judged if its answer is that of a fault.
func (e *enumerator) notePlugin(m mountinfo.Mount, a probe.Answer, of waitingVolume) {
	if v := judgeMount(a, false, m, deviceHealth(m)); slices.Contains(mountFaults, v.Code) {
		e.seen.Unknown.AddPlace(mountstate.Place{Pod: of.pod, Volume: of.volume, Point: m.Point, Reason: fmt.Sprintf(
			"a mount of a driver is broken (%s): %s; until the driver mounts it again, or it is unmounted, no pod gets a volume from there", v.Code, v.Reason())})
	}
}

// waitingFor are the volumes that are recorded and not mounted, by the staging paths that their records name.
func (e *enumerator) waitingFor(ctx context.Context) (map[string]waitingVolume, error) {
	waits := map[string]waitingVolume{}
	err := e.eachPlace(ctx, func(place kubelet.Volume) {
		point := e.host.node.VolumePoint(place)
		if _, mounted := e.host.visibleMounts[point]; mounted || place.Plugin != kubelet.CSIPlugin || place.Block || !e.scope.Includes(place.PodUID, place.Name) {
			return
		}
		record, err := kubelet.ReadVolumeRecordAt(e.host.table, point)
		if err != nil {
			return
		}
		for _, staging := range e.host.node.StagingPoints(record.Driver, record.Handle, record.PersistentVolume) {
			waits[staging] = waitingVolume{e.faultPod(place.PodUID), place.Name}
		}
	})
	return waits, err
}
