// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Advice is what follows from a finding for the person who reads it.
type Advice struct {
	Impact Impact `json:"impact"`
	Heal   Heal   `json:"heal"`
	// Summary is one sentence without the names of pod and volume, Plan what kubediag would do, or why it does nothing.
	Summary string `json:"summary"`
	Plan    string `json:"plan"`
	// Commands are for a shell on the node, in the order in which a person would try them.
	Commands []Command `json:"commands,omitempty"`
}

// Command is a line for a shell.
type Command struct {
	// Purpose says what the line does, and what is lost.
	Purpose string `json:"purpose"`
	Line    string `json:"line"`
	Effect  Effect `json:"effect"`
}

// Effect says what a command changes.
type Effect string

// Effects.
const (
	// EffectNone: it only shows something.
	EffectNone Effect = "None"
	// EffectRepair: it repairs the fault, and neither data nor work is lost.
	EffectRepair Effect = "Repair"
	// EffectLoss: it may repair the fault, and something is lost.
	EffectLoss Effect = "Loss"
)

// Caller is what advice rests on beside the finding.
type Caller struct {
	// Automatic is whether an agent repairs dead binds and volumes of this node without a request.
	Automatic bool
	// Enter is a process in the kubelet's mount namespace. 0: a shell is in that namespace already.
	Enter int
	// Flags are those with which the command kubediag looks at the same node, with a space before each. Empty: it finds
	// it.
	Flags string
	// Pods is the flag that gives the command kubediag recover the specs of pods, with a space before it. Empty: they were
	// not given.
	Pods string
}

// Advise derives from a finding when it hurts, what repairs it, and what a person can type. It reads typed fields only.
func Advise(f Finding, c Caller) Advice {
	return Advice{
		Impact: impactOf(f), Heal: healOf(f, c.Automatic), Summary: summaryOf(f), Plan: planOf(f), Commands: commandsOf(f, c),
	}
}

// impactOf says when a fault hurts.
func impactOf(f Finding) Impact {
	switch f.Code.Entry().Family {
	case FamilyDevice:
		return ImpactDetach
	case FamilyOrphan:
		return ImpactCleanup
	case FamilyBind:
		if f.Details.Container != ContainerDown {
			return ImpactNextStart
		}
	}
	return ImpactNow
}

// healOf says what repairs a fault. An agent repairs by itself what is bound and dead, not what is held or left behind.
func healOf(f Finding, automatic bool) Heal {
	switch {
	case f.Details.Repair == Replace && automatic:
		return HealAutomatic
	case f.Details.Repair != "":
		return HealSafe
	case f.Details.Refusal.Reason == AwaitsDriver:
		return HealDriver
	}
	return HealPerson
}

// summaryOf is one sentence about the fault.
func summaryOf(f Finding) string {
	text, d := factOf(f), f.Details
	switch {
	case f.Code == HungMount && d.Daemon != nil:
		return text + "; " + daemon(*d.Daemon)
	case f.Code == HeldDevice && d.HeldBy != nil:
		text = "held by " + holderOf(f)
		if d.Repair != "" {
			text += ", which has a private copy of the host's mounts"
		}
		return text
	case d.Repair == Replace && f.Code != StaleSubPath:
		if f.Code == DisconnectedFUSE && d.Driver != "" {
			return text + "; " + d.Driver + " has mounted the volume again"
		}
		return text + "; a directory that answers can take its place"
	case d.Repair == Unmount && d.PodState == PodDeleting:
		return text + "; its pod is going, and no container of it runs"
	case d.Repair == Unmount && f.Code == DisconnectedFUSE:
		return text + "; a living mount of the same source lies beneath it"
	case d.Refusal.Reason == AwaitsDriver && d.Driver != "":
		return text + "; " + d.Driver + " has mounted nothing in its place"
	case d.Refusal.Text != "":
		return text + "; left alone: " + d.Refusal.Text
	}
	return text
}

// factOf is the fixed part of the sentence about a finding. DisconnectedFUSE is found of clients in the kernel, too.
func factOf(f Finding) string {
	if f.Code == DisconnectedFUSE && isFUSE(f.Mount) {
		return "the connection to its FUSE daemon is gone"
	}
	return f.Code.Entry().Fact
}

func isFUSE(m Mount) bool { return strings.HasPrefix(m.FSType, "fuse") }

// holderOf names what holds a device: the container, and the process.
func holderOf(f Finding) string {
	process := f.Details.HeldBy.String()
	switch {
	case f.Pod.Name != "" && f.Container != "":
		return fmt.Sprintf("container %s of pod %s/%s (%s)", f.Container, f.Pod.Namespace, f.Pod.Name, process)
	case f.Pod.Name != "":
		return fmt.Sprintf("pod %s/%s (%s)", f.Pod.Namespace, f.Pod.Name, process)
	}
	return process
}

// daemon says what the process that serves a file system does.
func daemon(p Process) string {
	switch p.State {
	case ProcessStopped:
		return "its daemon " + p.String() + " is stopped"
	case ProcessBlocked:
		return "its daemon " + p.String() + " waits in the kernel"
	case ProcessEnded:
		return "its daemon " + p.String() + " has ended"
	}
	return "its daemon is " + p.String()
}

// String is the process for people, such as ceph-fuse[21087].
func (p Process) String() string {
	if p.Command == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("%s[%d]", p.Command, p.PID)
}

// planOf is what kubediag would do, or why it does nothing.
func planOf(f Finding) string {
	d := f.Details
	switch {
	case d.Repair == Replace && f.Code == StaleSubPath:
		text := "replace this one bind with the file that the subPath names now"
		switch d.Container {
		case ContainerRuns:
			text += "; the running container keeps what it has"
		case ContainerDown:
			text += ", so that the container can start"
		}
		return text
	case d.Repair == Replace:
		return "put the mount that belongs there beneath the broken one, and remove the broken one"
	case d.Repair == Unmount && f.Code == HeldDevice:
		return "unmount this copy in the mount namespace that has it, and detach the device; no process ends"
	case d.Repair == Unmount && f.Code == StaleSubPath:
		return "unmount this one dead bind, which keeps its pod from going"
	case d.Repair == Unmount:
		return "unmount this one dead mount, and nothing that answers"
	case d.Repair == RemoveDirectory:
		return "remove the empty directories that are left, and nothing that may be data"
	case d.Refusal.Reason == AwaitsDriver:
		text := f.Code.Entry().NoPlan
		switch {
		case newPodHelps(f) && d.SharedStaging > 0:
			text += fmt.Sprintf("; a new pod on this node gets the same dead mount, because %d more use it", d.SharedStaging)
		case newPodHelps(f):
			text += "; an eviction of the pod does that too"
		}
		return text
	case d.Refusal.Text != "" && d.Refusal.Reason != NoAnswer:
		return "nothing: " + d.Refusal.Text
	}
	return cmp.Or(remedyOf(f).noPlan, f.Code.Entry().NoPlan)
}

// ShowProcesses is a command that shows what processes wait for.
func ShowProcesses(pids ...int) string {
	list := make([]string, len(pids))
	for i, pid := range pids {
		list[i] = strconv.Itoa(pid)
	}
	return "ps -o pid,stat,wchan:32,args -p " + strings.Join(list, ",")
}

// hungCommands are those for a file system that does not answer.
func hungCommands(f Finding, _ Caller) (list []Command) {
	if p := f.Details.Daemon; p != nil {
		if p.State == ProcessStopped {
			list = append(list, Command{"lets the stopped daemon run again", fmt.Sprintf("kill -CONT %d", p.PID), EffectRepair})
		}
		list = append(list, Command{"shows what the daemon does", ShowProcesses(p.PID), EffectNone})
	}
	minor, ok := strings.CutPrefix(f.Mount.Device, "0:")
	_, err := strconv.ParseUint(minor, 10, 32) // a bundle may have anything, and a shell reads the line below twice
	if ok && err == nil && strings.HasPrefix(f.Mount.FSType, "fuse") {
		list = append(list, Command{
			"ends the connection; requests in flight are lost", "sh -c " + Quote("echo 1 >/sys/fs/fuse/connections/"+minor+"/abort"), EffectLoss,
		})
	}
	return list
}
