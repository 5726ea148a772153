// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strconv"
	"strings"
)

// Advice is the conclusion from a finding, for the person who reads it.
type Advice struct {
	Impact Impact `json:"impact"`
	Heal   Heal   `json:"heal"`
	// Summary is one sentence without the names of pod and volume, Plan the repair that kubediag would make, or why it makes
	// no repair.
	Summary string `json:"summary"`
	Plan    string `json:"plan"`
	// Prevention is the change that makes the fault impossible, or why there is none. It is empty for a fault that the catalogue does not have.
	Prevention string `json:"prevention,omitempty"`
	// Commands are for a shell on the node, in the order in which a person would try them.
	Commands []Command `json:"commands,omitempty"`
}

// Command is a line for a shell.
type Command struct {
	// Purpose names the effect of the line, and its loss.
	Purpose string `json:"purpose"`
	Line    string `json:"line"`
	Effect  Effect `json:"effect"`
}

// Effect is how far a command changes the node.
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

// Caller has the facts that advice needs beside the finding.
type Caller struct {
	// Automatic is whether an agent repairs dead binds and volumes of this node without a request.
	Automatic bool
	// Enter is how a line comes from the shell into the kubelet's mount namespace.
	Enter Enter
	// Flags are those with which the command kubediag looks at the same node, with a space before each. Empty: it finds
	// it.
	Flags string
	// Pods is the flag that gives the command kubediag recover the specs of pods, with a space before it. Empty: they were
	// not given.
	Pods string
}

// Enter says how a line comes into the kubelet's mount namespace. Only process 1 has its number for as long as the node runs. Any other
// number may be that of a process in a container when the line is pasted, and then a program of its image would run.
type Enter int

// Ways into the kubelet's mount namespace.
const (
	// EnterNothing: the shell is in it.
	EnterNothing Enter = iota
	// EnterFirst: process 1 is in it.
	EnterFirst
	// EnterNever: neither is. No line leads there for certain.
	EnterNever
)

// Advise derives from a finding when it hurts, who repairs it, and commands for a person. It reads typed fields only. An agent replaces dead mounts
// by itself, and unmounts those that keep a pod from going. It does not touch devices that are held, or directories that are left.
func (c Catalogue) Advise(f Finding, caller Caller) Advice {
	of := c.caseOf(f, caller)
	a := Advice{Impact: of.Entry.Symptom.Impact(f), Heal: HealPerson, Summary: of.summary(), Plan: of.plan(), Commands: of.commands()}
	if f.Details.KeepsPod {
		a.Impact = ImpactTerminating
	}
	switch {
	case caller.Automatic && (f.Details.Repair == Replace || f.Details.Repair == Unmount && f.Details.KeepsPod):
		a.Heal = HealAutomatic
	case f.Details.Repair != "":
		a.Heal = HealSafe
	case f.Details.Refusal.Reason == AwaitsDriver:
		a.Heal = HealDriver
	}
	if change := of.Entry.Prevention.Change; change != nil {
		a.Prevention = change(f)
	}
	if none := of.Entry.Prevention.None; a.Prevention == "" && none != "" {
		a.Prevention = "none: " + none
	}
	return a
}

// always is the same for each finding.
func always[T any](value T) func(Finding) T { return func(Finding) T { return value } }

// unlessItRuns is when a fault of a container hurts: a container that runs keeps its mount.
func unlessItRuns(f Finding) Impact {
	if f.Details.Container == ContainerDown {
		return ImpactNow
	}
	return ImpactNextStart
}

// summary is one sentence about the fault.
func (c *Case) summary() string {
	f, d := c.Finding, c.Finding.Details
	if culprit := c.Entry.Symptom.Culprit; culprit != nil {
		if text := culprit(f); text != "" {
			return text
		}
	}
	text, more := c.Entry.Symptom.Fact(f), ""
	way, repaired := c.Entry.Ways[d.Repair]
	switch {
	case repaired:
		more = way.Why(f)
	case d.Refusal.Reason == AwaitsDriver && d.Driver != "":
		more = d.Driver + " has mounted nothing in its place"
	case d.Refusal.Text != "":
		more = "left alone: " + d.Refusal.Text
	}
	if more != "" {
		text += "; " + more
	}
	return text
}

// connectionGone is the fact about a mount whose daemon is gone. It is found of clients in the kernel, too.
func connectionGone(f Finding) string {
	if isFUSE(f.Mount) {
		return "the connection to its FUSE daemon is gone"
	}
	return "the connection to its server is gone"
}

func isFUSE(m Mount) bool { return strings.HasPrefix(m.FSType, "fuse") }

// takesItsPlace says why a mount of a volume can be replaced.
func takesItsPlace(Finding) string { return "a directory that answers can take its place" }

// driverIsBack says the same of one whose daemon was gone.
func driverIsBack(f Finding) string {
	if f.Details.Driver == "" {
		return takesItsPlace(f)
	}
	return f.Details.Driver + " has mounted the volume again"
}

// putBeneath is the plan for a mount of a volume that is replaced.
const putBeneath = "put the mount that belongs there beneath the broken one, and remove the broken one"

// replaceBind is the plan for a bind that is replaced.
func replaceBind(f Finding) string {
	text := "replace this one bind with the file that the subPath names now"
	switch f.Details.Container {
	case ContainerRuns:
		text += "; the running container keeps what it has"
	case ContainerDown:
		text += ", so that the container can start"
	}
	return text
}

// whyUnmount says why a mount can be taken away: its pod is going, or else the given reason.
func whyUnmount(reason string) func(Finding) string {
	return func(f Finding) string {
		if f.Details.PodState == PodDeleting {
			return "its pod is going, and no container of it runs"
		}
		return reason
	}
}

// heldBy names the holder of a device: the container, and the process.
func heldBy(f Finding) string {
	if f.Details.HeldBy == nil {
		return ""
	}
	text := "held by " + f.Details.HeldBy.String()
	switch process := f.Details.HeldBy.String(); {
	case f.Pod.Name != "" && f.Container != "":
		text = fmt.Sprintf("held by container %s of pod %s/%s (%s)", f.Container, f.Pod.Namespace, f.Pod.Name, process)
	case f.Pod.Name != "":
		text = fmt.Sprintf("held by pod %s/%s (%s)", f.Pod.Namespace, f.Pod.Name, process)
	}
	if f.Details.Repair != "" {
		text += ", which has a private copy of the host's mounts"
	}
	return text
}

// hungDaemon is the state of the daemon behind a file system that does not answer.
func hungDaemon(f Finding) string {
	p := f.Details.Daemon
	if p == nil {
		return ""
	}
	text := "it does not answer; its daemon " + p.String()
	switch p.State {
	case ProcessStopped:
		return text + " is stopped"
	case ProcessBlocked:
		return text + " waits in the kernel"
	case ProcessEnded:
		return text + " has ended"
	}
	return "it does not answer; its daemon is " + p.String()
}

// String is the process for people, such as ceph-fuse[21087].
func (p Process) String() string {
	if p.Command == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("%s[%d]", p.Command, p.PID)
}

// plan is the repair that kubediag would make, or why it makes no repair.
func (c *Case) plan() string {
	d := c.Finding.Details
	way, repaired := c.Entry.Ways[d.Repair]
	switch {
	case repaired:
		return way.Plan(c.Finding)
	case d.Refusal.Reason == AwaitsDriver:
		text := c.Entry.NoPlan
		switch {
		case c.newPodHelps() && d.SharedStaging > 0:
			text += fmt.Sprintf("; a new pod on this node gets the same dead mount, because %d more use it", d.SharedStaging)
		case c.newPodHelps():
			text += "; an eviction of the pod does that too"
		}
		return text
	case d.Refusal.Text != "" && d.Refusal.Reason != NoAnswer:
		return "nothing: " + d.Refusal.Text
	}
	if noPlan := c.remedy().NoPlan; noPlan != nil {
		return noPlan(c.Finding)
	}
	return c.Entry.NoPlan
}

// ShowProcesses is a command that shows where processes wait.
func ShowProcesses(pids ...int) string {
	list := make([]string, len(pids))
	for i, pid := range pids {
		list[i] = strconv.Itoa(pid)
	}
	return "ps -o pid,stat,wchan:32,args -p " + strings.Join(list, ",")
}

// hungCommands are those for a file system that does not answer.
func (c *Case) hungCommands() (list []Command) {
	f := c.Finding
	if p := f.Details.Daemon; p != nil {
		if p.State == ProcessStopped {
			list = append(list, Command{"lets the stopped daemon run again", fmt.Sprintf("kill -CONT %d", p.PID), EffectRepair})
		}
		list = append(list, Command{"shows what the daemon does", ShowProcesses(p.PID), EffectNone})
	}
	minor, ok := strings.CutPrefix(f.Mount.Device, "0:")
	_, err := strconv.ParseUint(minor, 10, 32) // a bundle may have anything, and a shell reads the line below twice
	if ok && err == nil && isFUSE(f.Mount) {
		// A connection that is made later may have the same number. It answers, so nothing waits in it.
		connection := "/sys/fs/fuse/connections/" + minor
		list = append(list, Command{
			"ends the connection, if requests wait for an answer; they are lost",
			"sh -c " + Quote("grep -vx 0 "+connection+"/waiting && echo 1 >"+connection+"/abort"), EffectLoss,
		})
	}
	return list
}
