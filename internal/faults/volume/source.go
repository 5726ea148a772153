// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// Source is what belongs in the place of a mount: a directory of a mount that is alive.
type Source struct {
	// Mount is the mount that it is looked up in, in the kubelet's namespace, and Below the way from its root; empty:
	// the root.
	Mount fault.Mount `json:"mount"`
	Below string      `json:"below,omitempty"`
	// Path is the same as a path of the host, for people.
	Path string `json:"path"`
	// Device and Inode are those that it answered with, FSType is the type of the file system it is on.
	Device string `json:"device"`
	Inode  uint64 `json:"inode"`
	FSType string `json:"fsType,omitempty"`
	// Reason says why it is the same volume.
	Reason string `json:"why"`

	mount      mountns.Mount // Mount, with its number
	probedStat probe.Stat    // of Path
}

// isAnswer reports whether an answer is that of the source.
func (s *Source) isAnswer(a probe.Answer) bool {
	return s != nil && a.State == probe.Alive && a.Stat.Inode == s.Inode && (device{a.Stat.Major, a.Stat.Minor}).String() == s.Device
}

// safetyReason says why it can take the place of a mount, for that reason; empty if there is no source.
func (s *Source) safetyReason(why string) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s; %q takes its place: %s; the new mount goes beneath the old one first; if the kernel cannot do that, only an unused mount is replaced",
		why, s.Path, s.Reason)
}

// Replacement is what can take the place of a volume's mount and of its copies.
type Replacement struct {
	// Source is nil if there is none, and NoSourceReason says why.
	Source         *Source
	NoSourceReason string
	// WrittenToNodeDisk has the names of what was written to the node's own disk instead of to the volume, at most
	// maxWrittenNames.
	WrittenToNodeDisk []string
}

// findReplacement finds the source of a volume that was judged, and lists what it would hide: what was written to the node's own disk instead of to
// the volume. That is in a local directory, and the one way to it that is left is the pod's mount; any other mount that is there by now may not answer.
func (h *hostMounts) findReplacement(ctx context.Context, e *Evidence, v Verdict) Replacement {
	var r Replacement
	if (e.stagedLocation().OnNodeDisk || e.Mismatch.UnstagedDir != "" || e.Mismatch.Covered != "") && v.Code == fault.DeletedVolumeSource &&
		!mountns.MayHang(e.Mount.FSType) && e.Answer.Stat.Nlink != 0 {
		err := h.node.Do(ctx, func() error {
			r.WrittenToNodeDisk = namesIn(openRoot(e.Mount))
			return nil
		})
		if err != nil {
			r.WrittenToNodeDisk = namesIn(nil, err)
		}
	}
	r.Source, r.NoSourceReason = findSource(e, v)
	return r
}

// noMountCures is why a VolumeIOError is not repaired.
const noMountCures = "the server, the network or the disk of the volume has to be repaired: another mount of it cures no error"

// findSource decides what belongs in the place of a volume's mount and of its copies. For the copies it is the mount
// itself, if that is healthy.
func findSource(evidence *Evidence, verdict Verdict) (s *Source, reason string) {
	notStaged := cmp.Or(evidence.NoStagingReason, evidence.stagedLocation().Reason)
	switch {
	case verdict.UnknownReason != "":
		return nil, cmp.Or(notStaged, fmt.Sprintf("the mount at %q could not be judged: %s", evidence.Point, verdict.UnknownReason))
	case verdict.Code == fault.VolumeIOError:
		return nil, noMountCures
	case evidence.isPath():
		return hostPathSource(evidence, verdict)
	case verdict.Code == "" && evidence.Plugin == kubelet.CSIPlugin && evidence.Record == nil:
		return nil, notStaged
	case verdict.Code == "":
		why := "it is what the kubelet keeps for this volume of this pod"
		if evidence.Record != nil {
			why += ", and its record there names " + evidence.Record.String()
		}
		return sourceCandidate{mount: evidence.Mount, answer: evidence.Answer, reason: why}.toSource()
	case evidence.Staging == nil:
		return nil, notStaged
	}
	if reason := sourceMismatch(evidence); reason != "" {
		return nil, reason
	}
	below, directory := evidence.stagedLocation().Below, "the root"
	if below != "" {
		directory = fmt.Sprintf("directory %q", below)
	}
	return sourceCandidate{mount: evidence.Staging.Mount, below: below, answer: evidence.Expected.Directory, reason: fmt.Sprintf(
		"the kubelet's records beside it and beside the pod's mount both name %s, and it is %s of it, as before", evidence.Record, directory)}.toSource()
}

// hostPathSource takes the path of the host, if the mount that it lies on is alive.
func hostPathSource(evidence *Evidence, v Verdict) (s *Source, reason string) {
	if v.Code != "" && v.Code != fault.DeletedVolumeSource {
		kind := "hostPath"
		if evidence.Plugin != HostPathPlugin {
			kind = "path of the driver's symbolic link,"
		}
		return nil, fmt.Sprintf("the mount at %q, on which the %s %q lies, is not the kubelet's: the program that mounted it must "+
			"mount it again", evidence.Mount.Point, kind, evidence.Point)
	}
	from := sourceCandidate{
		mount: evidence.Mount, below: evidence.pathBelowMount(), answer: evidence.Answer,
		reason: fmt.Sprintf("the pod's spec names hostPath %q, which lies on it", evidence.Point),
	}
	if evidence.Link != "" && evidence.Plugin != HostPathPlugin {
		from.reason = fmt.Sprintf("the driver has made a symbolic link at %q to %q, which lies on it", evidence.Link, evidence.Point)
	}
	if from.below != "" {
		from.answer = evidence.Expected.Directory
	}
	return from.toSource()
}

// sourceMismatch says why nothing can be taken from the staging path.
func sourceMismatch(evidence *Evidence) string {
	staging, at := evidence.Staging, evidence.stagedLocation()
	switch {
	case evidence.Expected.StagingRoot.State != probe.Alive:
		return fmt.Sprintf("the staging path %q is not alive either (%s): the driver has not mounted the volume again", staging.Point,
			describeAnswer(evidence.Expected.StagingRoot))
	case evidence.Mismatch.AlsoFor != "":
		return fmt.Sprintf("the file system at the staging path %q is also that of %s: it may be of another volume", staging.Point, evidence.Mismatch.AlsoFor)
	case !at.Known:
		return at.Reason
	case at.OnNodeDisk:
		return ""
	case staging.Mount.FSType != evidence.Mount.FSType || staging.Mount.Source != evidence.Mount.Source:
		return fmt.Sprintf("the staging path %q is of type %q from %q, and the pod's mount of type %q from %q: they may be "+
			"different volumes", staging.Point, staging.Mount.FSType, staging.Mount.Source, evidence.Mount.FSType, evidence.Mount.Source)
	}
	return ""
}

// sourceCandidate is a directory that may be put in the place of a mount, and what it answered.
type sourceCandidate struct {
	mount  mountns.Mount
	below  string
	answer probe.Answer
	reason string // why it is the same volume
}

// toSource makes the candidate a source if it can be bound and identified.
func (c sourceCandidate) toSource() (s *Source, reason string) {
	name := path.Join(c.mount.Point, c.below)
	switch answer := c.answer; {
	case answer.State == probe.Missing:
		return nil, fmt.Sprintf("there is no %q", name)
	case answer.State != probe.Alive:
		return nil, fmt.Sprintf("%q does not answer as it should (%s)", name, describeAnswer(answer))
	case answer.Bindable != probe.Yes:
		return nil, fmt.Sprintf("%q cannot be bound, or it is not known whether it can", name)
	case !answer.Stat.Fresh:
		return nil, fmt.Sprintf("the inode of %q is unknown", name)
	}
	at, stat := c.mount, c.answer.Stat
	at.Unique = c.answer.ID.UniqueID
	return &Source{
		Mount: faults.MountOf(at), Below: c.below, Path: name, Reason: c.reason, FSType: c.mount.FSType,
		Device: device{stat.Major, stat.Minor}.String(), Inode: stat.Inode, mount: at, probedStat: stat,
	}, ""
}

// maxWrittenNames bounds how many names are read of what was written to the node's own disk.
const maxWrittenNames = 16

// namesIn are the names in a directory of a local file system that was opened, at most maxWrittenNames, or why they cannot be listed. It closes the
// directory.
func namesIn(dir *sys.FD, err error) []string {
	defer dir.Close()
	if err == nil {
		var names []string
		if names, _, err = sys.ListDir(dir, maxWrittenNames); err == nil {
			return names[:min(len(names), maxWrittenNames)]
		}
	}
	return []string{"(what it holds could not be listed: " + err.Error() + ")"}
}

// hostMounts are the mounts of the kubelet's namespace, as they were when an inspection began.
type hostMounts struct {
	node          *kubelet.Node
	namespace     mountns.Namespace
	table         *mountinfo.Table
	visibleMounts map[string]mountinfo.Mount // by point: those below the directories of pods and plugins
	shownDevices  map[device]bool            // the file systems that a mount shows
}

func readHostMounts(ctx context.Context, k kubelet.Locator) (*hostMounts, error) {
	node, err := k.Node(ctx)
	if err != nil {
		return nil, err
	}
	host, table, err := node.OwnedMounts()
	if err != nil {
		return nil, err
	}
	mounts := table.Mounts()
	h := &hostMounts{
		node: node, namespace: host, table: table,
		visibleMounts: make(map[string]mountinfo.Mount, len(mounts)), shownDevices: make(map[device]bool, len(mounts)),
	}
	// The top mount at a point below the kubelet's directories is visible, and the mounts under it are covered. A mount that
	// covers a directory above is left to the prober, which asks only the mount that is meant.
	covered := map[int]bool{}
	for i := range mounts {
		if parent, ok := table.ByID(mounts[i].Parent); ok && parent.Point == mounts[i].Point {
			covered[parent.ID] = true
		}
	}
	pods, plugins := node.PodsDir(), node.PluginsDir()
	for i := range mounts {
		m := &mounts[i]
		if covered[m.ID] {
			continue
		}
		h.shownDevices[deviceOf(*m)] = true
		if mountinfo.Within(pods, m.Point) || mountinfo.Within(plugins, m.Point) {
			h.visibleMounts[m.Point] = *m
		}
	}
	return h, nil
}

// judgeOwnDisks notes the file systems that the kubelet's own directories are on, if the kernel says that they do not serve. Each volume that is a
// directory there, such as an emptyDir, is no mount that could be asked, and fails with them.
func (h *hostMounts) judgeOwnDisks(unknown *mountstate.Unknown) {
	for _, dir := range []string{h.node.PodsDir(), h.node.PluginsDir()} {
		m, ok := h.table.On(dir)
		if !ok {
			continue
		}
		disk := deviceHealth(m)
		v := judgeMount(probe.Answer{State: probe.Alive}, false, m, disk) // a directory there was read
		if reason := cmp.Or(v.Reason(), v.UnknownReason, readOnlyReason(m, disk), noWritesReason(disk)); reason != "" {
			unknown.AddPlace(mountstate.Place{Point: m.Point, Reason: "the kubelet's own directories are there, and with them each volume that is no mount: " + reason})
		}
	}
}

// withNamespace is a mount of the table with its namespace.
func (h *hostMounts) withNamespace(m mountinfo.Mount) mountns.Mount {
	return mountns.Mount{Mount: m, Unique: h.node.UniqueID(m.ID), Namespace: h.namespace}
}

// maxFollowed bounds the symbolic links that are followed in one path.
const maxFollowed = 40

// resolveLinks follows the symbolic links on the way of a path, up to the first mount that may hang: that is not asked. It is called inside the kubelet's
// namespace.
func (h *hostMounts) resolveLinks(name string) string {
	fd, err := mountns.View{}.Lookup(name)
	if err == nil {
		_ = fd.Close() // nothing was written
	}
	if !errors.Is(err, sys.ELOOP) {
		return name
	}
	links := 0
	for at := 1; at < len(name); {
		end := len(name)
		if n := strings.IndexByte(name[at:], '/'); n >= 0 {
			end = at + n
		}
		if top, ok := h.table.Top(name[:end]); ok && mountns.MayHang(top.FSType) {
			return name
		}
		if to := kubelet.Symlink(name[:end]); to != "" {
			if links++; links > maxFollowed {
				return name
			}
			name, at = path.Join(to, name[end:]), 1
			continue
		}
		at = end + 1
	}
	return name
}

// coverOf names the directory of the node that a mount below the kubelet's directories is, and the file system that was mounted on this directory
// since. It is empty if none was, or if another mount of the node shows the directory still.
func (h *hostMounts) coverOf(m mountinfo.Mount) (covered string) {
	if m.Deleted() {
		return ""
	}
	for _, at := range h.table.OfDevice(m.Major, m.Minor) {
		below, ok := mountinfo.Below(unmarkedRoot(at), unmarkedRoot(m))
		name := path.Join(at.Point, below)
		if !ok || at.Deleted() || mountinfo.Within(h.node.PodsDir(), at.Point) || mountinfo.Within(h.node.PluginsDir(), at.Point) {
			continue
		}
		top, ok := h.table.Top(name)
		if !ok || deviceOf(top) == deviceOf(m) {
			return ""
		}
		covered = fmt.Sprintf("%q, where device %s (%s) is mounted now", name, deviceOf(top), top.FSType)
	}
	return covered
}

// locateInStaged finds the way from the staged mount to the volume's directory, from the root that the volume's mount
// has: in the file system that is staged, or in the one below it, if that was bound before the volume was mounted.
func (h *hostMounts) locateInStaged(volume *Volume, staged mountns.Mount, point string) Location {
	if volume.Mount.ID == 0 {
		return Location{Reason: fmt.Sprintf("nothing is mounted at %q, so the directory of the volume that belongs there is unknown",
			volume.Point)}
	}
	root, stagedRoot := unmarkedRoot(volume.Mount.Mount), unmarkedRoot(staged.Mount)
	// The directory that the lowest of the mounts at the staging path covers, and the device it is on.
	stack := h.table.Stack(staged.Mount)
	lowest := stack[len(stack)-1]
	on, covers := h.table.ByID(lowest.Parent)
	way, leads := mountinfo.Below(on.Point, lowest.Point)
	disk, dir := deviceOf(on), path.Join(unmarkedRoot(on), way)
	covers = covers && leads && disk != deviceOf(lowest)
	if covers && deviceOf(volume.Mount.Mount) == disk {
		if below, ok := mountinfo.Below(dir, root); ok {
			return Location{Known: true, Below: below, OnNodeDisk: true, Major: disk.major, Minor: disk.minor, Covered: path.Join(dir, below)}
		}
	}
	below, ok := mountinfo.Below(stagedRoot, root)
	if !ok {
		return Location{Reason: fmt.Sprintf("the mount has directory %q of its file system, which is not in directory %q that is "+
			"staged at %q", root, stagedRoot, point)}
	}
	at := Location{Known: true, Below: below}
	if covers {
		at.Major, at.Minor, at.Covered = disk.major, disk.minor, path.Join(dir, below)
	}
	return at
}
