// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"fmt"
)

// StuckTermination: the time of a pod that is being deleted is over, and something of it stays on the node, though no mount of it is broken.
const StuckTermination Code = "StuckTermination"

// Reason says which way a fault came about, where its code has several.
type Reason string

// Reasons of StuckTermination.
const (
	// ReasonForeignMount: a mount lies inside a volume, which the kubelet has not made.
	ReasonForeignMount Reason = "ForeignMount"
	// ReasonHidden: another mount hides a mount of the pod.
	ReasonHidden Reason = "Hidden"
	// ReasonNoRecord: the kubelet's record of a volume is missing, empty or damaged.
	ReasonNoRecord Reason = "NoRecord"
	// ReasonNotMounted: the record is there, and nothing is mounted.
	ReasonNotMounted Reason = "NotMounted"
	// ReasonInUse: a process of the kubelet's mount namespace uses a mount.
	ReasonInUse Reason = "InUse"
	// ReasonHasData: files lie in the place of a mount.
	ReasonHasData Reason = "HasData"
	// ReasonProcessWaits: a process of the pod was killed, and waits in the kernel.
	ReasonProcessWaits Reason = "ProcessWaits"
	// ReasonNotTakenDown: nothing on the node is seen that prevents it.
	ReasonNotTakenDown Reason = "NotTakenDown"
)

// Reasons lists every reason, the most precise first. The caller owns the slice.
func Reasons() []Reason {
	return []Reason{
		ReasonForeignMount, ReasonHidden, ReasonNoRecord, ReasonNotMounted, ReasonInUse, ReasonHasData, ReasonProcessWaits, ReasonNotTakenDown,
	}
}

// stuckWay has the texts about one way in which a pod cannot go.
type stuckWay struct {
	fact         func(Finding) string
	noPlan, next string
}

var stuckWays = map[Reason]stuckWay{
	ReasonForeignMount: {
		always("a mount that the kubelet has not made lies inside the volume"), "nothing: a person has to decide",
		"unmount it by hand once nothing uses it",
	},
	ReasonHidden: {
		always("another mount hides a mount of the pod, so that the kubelet cannot unmount it"), "nothing: both mounts may be in use",
		"unmount the mount that hides it if nothing uses that, or restart the node",
	},
	ReasonNoRecord: {
		always("the kubelet's record of the volume is missing or damaged, and without it the kubelet cannot take the volume down"),
		"nothing: an unmount alone does not help, because the kubelet needs its record",
		"write the record again as the runbook says, from the volume's PersistentVolume; the kubelet then takes the volume down",
	},
	ReasonNotMounted: {
		func(f Finding) string {
			return cmp.Or(f.Details.Driver, "its driver") + " has nothing mounted there, and the kubelet waits for it to take the volume down"
		},
		"nothing: the driver has to answer that the volume is unmounted",
		"look at the driver's log on this node: it does not answer, or refuses to unmount what is not mounted; update it, or restart the kubelet",
	},
	ReasonInUse: {
		func(f Finding) string {
			if f.Details.HeldBy == nil {
				return "something on the node uses the mount"
			}
			return "a process of the node uses the mount: " + f.Details.HeldBy.String()
		},
		"nothing: a healthy file system that is in use is not unmounted", "end what uses the mount; the kubelet then unmounts it",
	},
	ReasonHasData: {
		always("files lie on the node's own disk in the place of the mount, and the kubelet does not remove them"),
		"nothing: files that may be data are never touched", "look at the files, and move them away; the kubelet then removes the directory",
	},
	ReasonProcessWaits: {
		func(f Finding) string {
			if f.Details.HeldBy == nil {
				return "a process of the pod was killed and waits in the kernel"
			}
			return fmt.Sprintf("process %s of the pod was killed and waits in the kernel", f.Details.HeldBy)
		},
		"nothing: no signal ends a process that waits in the kernel",
		"have the disk or server answer that the process waits for, or restart the node",
	},
	ReasonNotTakenDown: {
		always("the kubelet has not taken it down, and nothing on the node is seen that prevents it"),
		"nothing: only the kubelet and the drivers of the volumes take a pod down",
		"wait two minutes, as a kubelet has tried again by then; if the pod stays, look at the kubelet's log for its UID, and at the drivers of its volumes",
	},
}

// wayOf is that of a finding.
func wayOf(f Finding) stuckWay {
	if way, ok := stuckWays[f.Details.Reason]; ok {
		return way
	}
	return stuckWays[ReasonNotTakenDown]
}

// AsksWhy reports whether the fault says that a pod stays, so that another fault may say why.
func (f *Finding) AsksWhy() bool { return f.Code == StuckTermination }

// Explains reports whether a fault is why a pod stays: at the same volume, or without a cause.
func (f *Finding) Explains(stays *Finding) bool {
	switch reason := stays.Details.Reason; {
	case !stays.AsksWhy(), f.Pod.UID != stays.Pod.UID, f.Pod.UID == "", !f.Details.KeepsPod, reason == ReasonForeignMount:
		return false
	case reason == ReasonNotTakenDown:
		return f.Details.Reason != reason
	}
	return !f.AsksWhy() && f.Volume == stays.Volume
}

var stuckTermination = Entry{
	Code:     StuckTermination,
	Title:    "A pod that is being deleted cannot go, though no mount of it is broken",
	Severity: Warning,
	Repair:   "unmount what a workload has left inside a volume, if nothing uses it and nothing is lost; all else is named, with the steps",
	Chinese: Translation{
		Title:  "正在删除的 Pod 无法消失，虽然它的挂载都没有损坏",
		Repair: "工作负载留在卷内的挂载，如果没有被使用、卸载也不会丢失任何东西，就卸载它；其余的只指明原因和步骤",
	},

	Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksNothing,
	Searches:  []Search{SearchVolumes, SearchLeaving},
	Operation: "volume-rebind-recover",
	Actions:   []ActionKind{Unmount},
	Alerts:    []string{"PodCannotGo"},

	Symptom: Symptom{
		Impact: always(ImpactTerminating),
		Fact:   func(f Finding) string { return wayOf(f).fact(f) },
		BySpec: bySpec,
	},
	Ways: map[ActionKind]Way{
		Unmount: {whyUnmount(""), always("unmount this one mount, which nothing uses; its file system stays mounted elsewhere")},
	},
	At: remedyAt(Remedy{
		Commands: remedyLines{(*Case).recoverPod, (*Case).showWaiting, (*Case).listPlace},
		Next:     func(f Finding) string { return wayOf(f).next }, NoPlan: func(f Finding) string { return wayOf(f).noPlan },
	}, PlaceVolume, PlaceSubPath, PlaceInsideVolume, PlacePodDirectory, PlaceUnknown),
	NoPlan: "nothing: a person has to decide", Next: "look at the evidence, and create another Diagnosis once that is solved",
	Prevention: Prevention{
		Change: preventStuck,
		None:   "no change of the pod can: the kubelet, a driver or a disk has failed, and the pod waits for it",
	},

	Without: []string{"Symptom.Culprit", "Loss"},
}

// showWaiting shows where a process waits that keeps a pod from going.
func (c *Case) showWaiting() []Command {
	p := c.Finding.Details.HeldBy
	if p == nil {
		return nil
	}
	return []Command{{"shows the process, and what it waits for", ShowProcesses(p.PID), EffectNone}}
}

// listPlace shows the mounts or the files that keep a pod from going.
func (c *Case) listPlace() []Command {
	f := c.Finding
	switch {
	case f.Mount.Point == "" || f.Details.Repair != "":
		return nil
	case f.Details.Reason == ReasonHasData:
		return c.onMount(Command{Purpose: "lists the files, which stay", Effect: EffectNone}, f.Mount.Point, "find %s -xdev -ls")
	}
	return c.onMount(Command{Purpose: "shows the mounts there", Effect: EffectNone}, f.Mount.Point, "grep -F -- %s /proc/self/mountinfo")
}
