// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/podinfo"
)

// Findings describes the volume as faults: one for the mount, and one for each broken copy. A healthy one has none.
func (v *Health) Findings() []fault.Finding {
	var all []fault.Finding
	if v.Verdict.Code != "" {
		own := v.finding()
		own.Evidence = slices.Concat(v.Verdict.Reasons, v.remedyFacts(), v.Evidence.Answer.Evidence, v.mountFacts())
		own.Details = v.faultDetails(own.Details.Place, v.repairVolume(PlanOptions{})[0])
		all = append(all, own)
	}
	for _, c := range v.Copies {
		where := "the kubelet's subPath bind"
		if !c.origin.onHost {
			where = "mount namespace " + c.Mount.Namespace.String()
		}
		planned, finding := c.replaceCopy(PlanOptions{}), c.finding()
		finding.Details = v.faultDetails(finding.Details.Place, planned)
		if c.Holder.Pod.UID != v.Evidence.Pod.UID {
			finding.Details.Workload, finding.Details.PodState = fault.Workload{}, ""
			finding.Details.SpecVolume, finding.Details.KeepsPod = "", false // of the volume's pod
		}
		finding.Evidence = append(finding.Evidence, c.Verdict.Reasons...)
		finding.Evidence = append(finding.Evidence, fmt.Sprintf("it is a copy of volume %q of pod %s, in %s: device %s, root %q, at %q", v.Evidence.Name,
			describePod(v.Evidence.Pod), where, deviceOf(c.Mount.Mount), c.Mount.Root, c.Mount.Point))
		if planned.refusal.Reason == "" {
			finding.Evidence = append(finding.Evidence, "its correct source is known: "+c.Decision.Reason)
		} else {
			finding.Evidence = append(finding.Evidence, "it is left alone: "+planned.refusal.Text)
		}
		all = append(all, finding)
	}
	return all
}

// finding says which mount of the volume is at fault, without its evidence and its repair.
func (v *Health) finding() fault.Finding {
	mount := faults.MountOf(v.Evidence.Mount)
	mount.Point = cmp.Or(mount.Point, v.Evidence.Point)
	return fault.Finding{
		Code: v.Verdict.Code, Pod: v.Evidence.Pod, Container: cmp.Or(v.Evidence.Origin.Container, v.Evidence.Origin.BindOf),
		Volume: v.Evidence.Name, Mount: mount, Holder: v.Evidence.driverName(),
		Details: fault.Details{Place: podinfo.SourcePlace(v.Verdict.Code, v.Evidence.spec.hostPath, "", v.Evidence.place()), PersistentVolume: v.Evidence.persistentVolume()},
	}
}

// finding says which copy is at fault, without its evidence and its repair.
func (c *Copy) finding() fault.Finding {
	place := fault.PlaceSubPath
	if !c.origin.onHost {
		place = fault.PlaceContainer
	}
	return fault.Finding{
		Code: c.Verdict.Code, Pod: c.Holder.Pod, Container: c.Holder.Container, Volume: c.volume.Evidence.Name, Mount: faults.MountOf(c.Mount), Holder: c.volume.Evidence.driverName(),
		Details: fault.Details{Place: place, PersistentVolume: c.volume.Evidence.persistentVolume()},
	}
}

// driverName names the driver that has mounted the volume.
func (v *Volume) driverName() string {
	if v.Record == nil {
		return ""
	}
	return fmt.Sprintf("CSI driver %q", v.Record.Driver)
}

// faultDetails are the facts about the volume's own mount or a copy. planned decides whether it can be repaired.
func (v *Health) faultDetails(place fault.Place, planned plannedAction) fault.Details {
	d := fault.Details{
		Daemon: v.Surroundings.Daemon, Place: place, PodState: podinfo.StateOf(v.Evidence.spec.pod), SpecVolume: v.Evidence.SpecName, PersistentVolume: v.Evidence.persistentVolume(),
	}
	if v.Verdict.Code == fault.StuckTermination {
		d.Reason = fault.ReasonForeignMount
	}
	switch place { // the kubelet takes nothing else down for a pod
	case fault.PlaceVolume, fault.PlaceSubPath, fault.PlaceInsideVolume:
		d.KeepsPod = v.keepsPod()
	}
	if v.Evidence.Record != nil {
		d.Driver = v.Evidence.Record.Driver
	}
	if v.Evidence.isStagedDevice() && v.Evidence.Expected.StagingRoot.State != probe.Alive {
		d.SharedStaging = v.Surroundings.SharedWithCount
	}
	if planned.refusal.Reason == "" {
		d.Repair = planned.action.Kind
	} else {
		d.Refusal = fault.Refuse(planned.refusal.Reason, planned.refusal.Text)
	}
	if v.Evidence.spec.pod != nil {
		d.Workload = kubelet.WorkloadOf(v.Evidence.spec.pod)
	}
	return d
}

// maxHidden bounds how many hidden mounts are described.
const maxHidden = 8

// mountFacts are what the mount table and the kubelet's records say.
func (v *Health) mountFacts() []string {
	var all []string
	if m := v.Evidence.Mount; m.ID != 0 {
		all = append(all, fmt.Sprintf("mountinfo: device %s, root %q, type %q from %q, at %q", deviceOf(m.Mount), m.Root, m.FSType, m.Source, m.Point))
	}
	for _, m := range v.Evidence.HiddenMounts[:min(len(v.Evidence.HiddenMounts), maxHidden)] {
		all = append(all, fmt.Sprintf("beneath it at the same place: device %s, root %q, type %q", deviceOf(m), m.Root, m.FSType))
	}
	if more := len(v.Evidence.HiddenMounts) - maxHidden; more > 0 {
		all = append(all, fmt.Sprintf("and %d more mounts beneath it at the same place", more))
	}
	if v.Evidence.SpecName != "" {
		all = append(all, fmt.Sprintf("the pod's spec calls the volume %q, and its PersistentVolume is %q", v.Evidence.SpecName, v.Evidence.Name))
	}
	if v.Evidence.Record != nil {
		all = append(all, "the kubelet's record names "+v.Evidence.Record.String())
	} else if v.Evidence.NoRecordReason != "" {
		all = append(all, "no record: "+v.Evidence.NoRecordReason)
	}
	if s := v.Evidence.Staging; s != nil {
		text := fmt.Sprintf("staged at %q: device %s, root %q, %s", s.Point, deviceOf(s.Mount.Mount), s.Mount.Root, v.Evidence.Expected.StagingRoot.State)
		if !v.Evidence.isStagedDevice() {
			text += "; that is another file system than the pod has"
		}
		all = append(all, text)
	}
	now, was := v.Evidence.Expected.Directory.Stat, v.Evidence.Answer.Stat
	if v.Replacement.Source != nil && !v.Evidence.stagedLocation().OnNodeDisk && !v.Evidence.directoryReplaced() && now.Inode != 0 && was.Inode != 0 && now.Inode != was.Inode {
		all = append(all, fmt.Sprintf("the directory of the mount had inode %d, and the one that belongs there has inode %d", was.Inode,
			now.Inode))
	}
	return all
}

// maxNamed bounds how many pods are named in a sentence.
const maxNamed = 10

// remedyFacts are the state of the daemon, what can take the volume's place, and the other pods that are concerned.
func (v *Health) remedyFacts() []string {
	all := slices.Clone(v.Surroundings.DaemonNotes)
	if v.Replacement.Source != nil {
		all = append(all, fmt.Sprintf("%q can take its place: %s", v.Replacement.Source.Path, v.Replacement.Source.Reason))
	} else if v.Replacement.NoSourceReason != "" {
		all = append(all, "nothing can take its place: "+v.Replacement.NoSourceReason)
	}
	if len(v.Replacement.WrittenToNodeDisk) > 0 {
		all = append(all, fmt.Sprintf("written to the node's own disk, at %q in its file system: %q",
			cmp.Or(v.Evidence.stagedLocation().Covered, v.Evidence.rootPath(), v.Evidence.Point), v.Replacement.WrittenToNodeDisk))
	}
	if v.Surroundings.ForeignCopies > 0 {
		all = append(all, fmt.Sprintf("%d copies of it are left alone: they are in containers of other pods, such as the driver's, in services "+
			"of the node, or in mount namespaces that workloads made", v.Surroundings.ForeignCopies))
	}
	if len(v.Surroundings.SharedWith) > 0 {
		var names []string
		for _, pod := range v.Surroundings.SharedWith[:min(len(v.Surroundings.SharedWith), maxNamed)] {
			names = append(names, describePod(pod))
		}
		all = append(all, fmt.Sprintf("other pods of this node that have a mount of the same file system: %d (%s)", v.Surroundings.SharedWithCount,
			strings.Join(names, ", ")))
	}
	return all
}

func describePod(pod fault.Pod) string {
	if pod.Name == "" {
		return pod.UID
	}
	return pod.Namespace + "/" + pod.Name
}
