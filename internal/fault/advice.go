// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"
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
	a := Advice{Impact: impactOf(f), Heal: healOf(f, c.Automatic), Summary: summaryOf(f), Plan: planOf(f)}
	a.Commands = commandsOf(f, c)
	return a
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
	case f.Code.Entry().AwaitsDriver && f.Details.Driver != "":
		return HealDriver
	}
	return HealPerson
}

// summaryOf is one sentence about the fault.
func summaryOf(finding Finding) string {
	text, d := finding.Code.Entry().Fact, finding.Details
	switch {
	case finding.Code == HungMount && d.Daemon != nil:
		text += "; " + daemon(*d.Daemon)
	case finding.Code == HeldDevice && d.HeldBy != nil:
		text = "held by " + d.HeldBy.String()
		if d.Repair != "" {
			text += ", which has a private copy of the host's mounts"
		}
	case finding.Code == OrphanedPodVolumes && d.Repair == "":
		text += ", with something in it that may be data"
	case !finding.Code.Entry().AwaitsDriver:
	case d.Repair != "" && d.Driver != "":
		text += "; " + d.Driver + " has mounted the volume again"
	case d.Repair == "" && d.Driver != "":
		text += "; " + d.Driver + " has mounted nothing in its place"
	}
	return text
}

// EvictionHelps reports whether the fault cannot be repaired in place, and a new pod gets a new mount of the volume.
func EvictionHelps(f Finding) bool {
	return f.Details.Repair == "" && f.Code.Entry().Family == FamilyVolume && slices.Contains(f.Code.Entry().Actions, Evict)
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
func planOf(finding Finding) string {
	switch finding.Details.Repair {
	case Replace:
		if finding.Code == StaleSubPath {
			return "replace this one bind with the file that the subPath names now; the running container keeps what it has"
		}
		return "put the mount that the driver made again beneath the dead one, and remove the dead one"
	case Unmount:
		if finding.Code == StaleSubPath {
			return "unmount this one dead bind, which keeps its pod from going"
		}
		return "unmount this copy in the mount namespace that has it, and detach the device; no process ends"
	case RemoveDirectory:
		return "remove the empty directories that are left, and nothing that may be data"
	}
	return finding.Code.Entry().NoPlan
}

// commandsOf are lines for a shell.
func commandsOf(finding Finding, c Caller) (list []Command) {
	add := func(effect Effect, purpose, line string) { list = append(list, Command{purpose, line, effect}) }
	prefix := ""
	if c.Enter != 0 {
		prefix = fmt.Sprintf("nsenter -t %d -m ", c.Enter)
	}
	d := finding.Details
	const asks = "shows the plan, asks, repairs it and proves it"
	if d.Repair == Replace && finding.Pod.Name != "" {
		add(EffectRepair, asks, "kubediag recover"+c.Flags+c.Pods+" "+Quote(finding.Pod.Namespace+"/"+finding.Pod.Name))
	}
	switch finding.Code {
	case StaleSubPath:
		if finding.Mount.Point != "" {
			add(EffectRepair, "removes the stale bind; the kubelet binds the current file at the next start",
				prefix+"umount -- "+Quote(finding.Mount.Point))
		}
	case HungMount:
		list = append(list, hungCommands(finding)...)
	case HeldDevice:
		if d.Repair != "" && d.Device != "" {
			add(EffectRepair, asks, "kubediag release"+c.Flags+" "+Quote(d.Device))
		}
		if d.HeldBy != nil && d.Repair != "" {
			add(EffectRepair, "removes the copy; ends no process",
				fmt.Sprintf("nsenter -t %d -m umount -- %s", d.HeldBy.PID, Quote(finding.Mount.Point)))
		}
		if d.Device != "" {
			add(EffectNone, "shows everything that holds the device, and what prevents it", "kubediag holders"+c.Flags+" "+Quote(d.Device))
		}
	case OrphanedPodVolumes:
		if d.Path != "" {
			add(EffectNone, "lists what is left", prefix+"find "+Quote(d.Path)+" -xdev -ls")
		}
	case VolumeIOError:
		add(EffectNone, "shows errors of file systems, disks and servers in the kernel's log", "dmesg --level=emerg,alert,crit,err,warn")
	case SourceTypeMismatch, MissingBindSource:
		list = append(list, podCommand(finding, Command{"shows what the pod mounts", "get pod %s -o yaml", EffectNone})...)
	default:
		list = append(list, podCommand(finding, Command{"deletes the pod; its successor gets a fresh mount", "delete pod %s", EffectLoss})...)
	}
	return list
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
func hungCommands(f Finding) (list []Command) {
	if p := f.Details.Daemon; p != nil {
		if p.State == ProcessStopped {
			list = append(list, Command{"lets the stopped daemon run again", fmt.Sprintf("kill -CONT %d", p.PID), EffectRepair})
		}
		list = append(list, Command{"shows what the daemon does", ShowProcesses(p.PID), EffectNone})
	}
	minor, ok := strings.CutPrefix(f.Mount.Device, "0:")
	if ok && strings.HasPrefix(f.Mount.FSType, "fuse") {
		list = append(list, Command{
			"ends the connection; requests in flight are lost", "sh -c " + Quote("echo 1 >/sys/fs/fuse/connections/"+minor+"/abort"), EffectLoss,
		})
	}
	return list
}

// podCommand is a call of kubectl about the pod, if its name is known.
func podCommand(f Finding, c Command) []Command {
	if f.Pod.Name == "" {
		return nil
	}
	c.Line = "kubectl -n " + Quote(f.Pod.Namespace) + " " + fmt.Sprintf(c.Line, Quote(f.Pod.Name))
	return []Command{c}
}
