// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Case is a finding with all that advice about it rests on.
type Case struct {
	Entry   Entry
	Finding Finding
	Caller  Caller
}

func (c Catalogue) caseOf(f Finding, caller Caller) *Case { return &Case{c.Entry(f.Code), f, caller} }

// Remedy has the steps of a person against a fault of one code at one place.
type Remedy struct {
	// NewPod is whether a new pod gets another mount, which works.
	NewPod bool
	// Commands are lines for a shell, in the order in which a person would try them.
	Commands []func(*Case) []Command
	// Next is the next step of a person if kubediag makes no repair, and NoPlan why it makes none. Nil: that of the entry.
	Next, NoPlan func(Finding) string
}

// remedyLines are commands of a remedy, each if it is for the finding.
type remedyLines []func(*Case) []Command

// shows are commands that need no fact about the finding.
func shows(list ...Command) func(*Case) []Command { return func(*Case) []Command { return list } }

// remedyAt is the same remedy at each of these places.
func remedyAt(remedy Remedy, places ...Place) map[Place]Remedy {
	all := map[Place]Remedy{}
	for _, place := range places {
		all[place] = remedy
	}
	return all
}

var (
	// ofHolder is the remedy against the holder of a device or of a file system.
	ofHolder = Remedy{Commands: remedyLines{(*Case).releaseDevice, (*Case).showHolders}}
	// ofSpec is that of a fault that the pod's spec, or the node, has to be changed for.
	ofSpec = Remedy{Commands: remedyLines{(*Case).showPod}}
)

// atVolumes are the remedies of a volume that is broken as a whole. A driver mounts its volume again for a new pod. A mount
// of the node or of a workload stays as it is. next is for the latter, and ofCopy for a copy in a container.
func atVolumes(mounted, other remedyLines, next, ofCopy func(Finding) string) map[Place]Remedy {
	volume, node := Remedy{NewPod: true, Commands: mounted}, Remedy{Commands: other, Next: next}
	return map[Place]Remedy{
		PlaceVolume: volume, PlaceSubPath: volume, PlaceContainer: {NewPod: true, Commands: mounted, Next: ofCopy}, PlaceHostPath: node,
		PlaceInsideVolume: node, PlaceUnknown: {},
	}
}

// deadAtVolumes are those of a volume that is dead for good.
func deadAtVolumes() map[Place]Remedy {
	return atVolumes(remedyLines{(*Case).recoverPod, (*Case).deletePod}, remedyLines{(*Case).recoverPod, (*Case).unmountDead},
		startDaemonFirst, startDaemonThenContainer)
}

// showErrors shows the errors that the kernel has met.
var showErrors = shows(Command{
	"shows errors of file systems, disks and servers in the kernel's log", "dmesg --level=emerg,alert,crit,err,warn", EffectNone,
})

// remedy is that of the place of the finding.
func (c *Case) remedy() Remedy { return c.Entry.At[c.Finding.Details.Place] }

// commands are lines for a shell.
func (c *Case) commands() (list []Command) {
	for _, of := range c.remedy().Commands {
		for _, command := range of(c) {
			at := slices.IndexFunc(list, func(other Command) bool { return other.Line == command.Line })
			switch {
			case at < 0:
				list = append(list, command)
			case strings.Contains(command.Purpose, notPasted): // its purpose says why
				list[at] = command
			}
		}
	}
	return list
}

// notPasted begins the reason why a line is left out.
const (
	notPasted      = "no other line can be pasted: "
	noWord         = notPasted + "a name or path has control characters, or is a flag"
	otherNamespace = notPasted + "the kubelet has a mount namespace of its own"
)

// isWord reports whether a text can be a word of a line to paste. A terminal acts on control characters, and not every shell has a form for
// them. A name or path with a dash in front is a flag.
func isWord(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) && !strings.HasPrefix(s, "-")
}

// paste is a command with words in its line. If one of them cannot be pasted, it is the verb of kubediag that does
// the same, or shows the fault.
func (c *Case) paste(command Command, words ...string) []Command {
	quoted := make([]any, len(words))
	for i, w := range words {
		if !isWord(w) {
			return []Command{c.byVerb(noWord)}
		}
		quoted[i] = Quote(w)
	}
	command.Line = fmt.Sprintf(command.Line, quoted...)
	return []Command{command}
}

// onMount is a command about a mount or a directory of the kubelet, in whose mount namespace it runs: each of these programs with the path,
// until one of them succeeds.
func (c *Case) onMount(command Command, path string, programs ...string) []Command {
	if c.Caller.Enter == EnterNever {
		return []Command{c.byVerb(otherNamespace)}
	}
	words := make([]string, len(programs))
	for i, program := range programs {
		if words[i] = path; c.Caller.Enter == EnterFirst {
			programs[i] = "nsenter -t 1 -m " + program
		}
	}
	command.Line = strings.Join(programs, " || ")
	return c.paste(command, words...)
}

// byVerb is the verb of kubediag for a fault about which no other line can be pasted, and why.
func (c *Case) byVerb(why string) Command {
	f := c.Finding
	recovers := func(word string) Command {
		return Command{asksFirst + "; " + why, "kubediag recover" + c.Caller.Flags + c.Caller.Pods + " " + Quote(word), EffectRepair}
	}
	pod := f.Pod.Namespace + "/" + f.Pod.Name
	switch {
	case f.Details.Repair == "", c.Entry.Scope == ScopeDevice:
	case f.Pod.Name != "" && isWord(pod):
		return recovers(pod)
	case f.Pod.UID != "" && isWord(f.Pod.UID):
		return recovers(f.Pod.UID)
	}
	return Command{"shows the fault and its evidence; " + why, "kubediag scan --verbose" + c.Caller.Flags, EffectNone}
}

// EvictionHelps reports whether the fault cannot be repaired in place, and a new pod gets a mount that works.
func (c Catalogue) EvictionHelps(f Finding) bool {
	return f.Details.Repair == "" && c.caseOf(f, Caller{}).newPodHelps()
}

// newPodHelps reports whether a new pod gets a mount that works, and no data is hidden by that. A pod that is not known
// may be evicted: the caller looks at the pod.
func (c *Case) newPodHelps() bool {
	d := c.Finding.Details
	switch d.Refusal.Reason {
	case NodeMount, HasData, PodGoes:
		return false
	}
	return c.remedy().NewPod && d.PodState != PodDeleting && d.PodState != PodEnded
}

// controller is the workload that makes the pod again after it was deleted; empty if none is known to.
func controller(f Finding) string {
	if f.Details.PodState != PodWanted || f.Details.Workload.Kind == "Node" { // a static pod
		return ""
	}
	return f.Details.Workload.String()
}

// NextStep is the next step of a person about a fault that kubediag does not repair.
func (c Catalogue) NextStep(f Finding) string {
	of := c.caseOf(f, Caller{})
	if next := of.remedy().Next; next != nil {
		if text := next(f); text != "" {
			return text
		}
	}
	text := of.Entry.Next
	if of.newPodHelps() && f.Details.SharedStaging > 0 {
		return text + ", or remove all pods of this node that use the volume: before that, a new pod here gets the same dead mount"
	}
	if by := controller(f); by != "" && of.newPodHelps() {
		text += fmt.Sprintf(", or delete the pod, which %s makes again", by)
	}
	return text
}

// startDaemonFirst is about a mount that no driver makes again for a pod.
func startDaemonFirst(f Finding) string {
	return fmt.Sprintf("start the program again that mounts %q, and then unmount what is broken: until it mounts again, writes go to the "+
		"node's own disk", f.Mount.Point)
}

// startDaemonThenContainer is about a container's copy of a mount that no driver makes again for a pod.
func startDaemonThenContainer(f Finding) string {
	if f.Details.Refusal.Reason != NodeMount {
		return ""
	}
	return fmt.Sprintf("start the program again that mounts what container %q has at %q, and then have the container start again, which keeps the "+
		"broken mount until then", f.Container, f.Mount.Point)
}

// recoverPod has kubediag repair it.
func (c *Case) recoverPod() []Command {
	f := c.Finding
	if f.Details.Repair == "" || f.Pod.Name == "" {
		return nil
	}
	return c.verb(Command{asksFirst, "recover", EffectRepair}, c.Caller.Pods, f.Pod.Namespace+"/"+f.Pod.Name)
}

// asksFirst is the purpose of a command of kubediag that repairs.
const asksFirst = "shows the plan, asks, repairs it and proves it"

// namesAgain is the controller that gives a new pod the name of the old one. A line of kubectl deletes by name, and cannot ask for the UID.
const namesAgain = "StatefulSet"

// deletePod has a controller make another pod. It is left out if nothing makes one, or if that would get the same mount, as on this
// node while other pods use the volume that is staged.
func (c *Case) deletePod() []Command {
	f := c.Finding
	switch by := controller(f); {
	case f.Details.Repair != "" || !c.newPodHelps() || f.Details.SharedStaging > 0 || f.Details.Workload.Kind == "Node":
		return nil
	case by == "":
		return c.podCommand(Command{"shows what made the pod: without a controller, a pod that is deleted is gone for good", "get pod %s -o yaml", EffectNone})
	default:
		which := "deletes the pod; "
		if f.Details.Workload.Kind == namesAgain {
			which = "deletes the pod, or the one that has its name by then; "
		}
		return c.podCommand(Command{which + by + " makes another, for which the volume is mounted again", "delete pod %s", EffectLoss})
	}
}

// showPod shows the spec of the pod, which has to be changed or lacks something on the node.
func (c *Case) showPod() []Command {
	return c.podCommand(Command{"shows what the pod mounts", "get pod %s -o yaml", EffectNone})
}

// unmountStaleBind removes a bind of the kubelet's, if kubediag would.
func (c *Case) unmountStaleBind() []Command {
	f := c.Finding
	if f.Mount.Point == "" || f.Details.Repair == "" {
		return nil
	}
	purpose := "removes the stale bind; the kubelet binds the current file at the next start"
	if f.Details.Repair == Unmount || f.Details.PodState == PodDeleting || f.Details.PodState == PodEnded {
		purpose = "removes the stale bind, so that the kubelet can remove the pod's directory"
	}
	return c.onMount(Command{Purpose: purpose, Effect: EffectRepair}, f.Mount.Point, "umount -- %s")
}

// unmountDead removes a dead mount that no driver makes again. If the place answers by then, as after its daemon has mounted again, the line
// removes nothing.
func (c *Case) unmountDead() []Command {
	f := c.Finding
	if f.Details.Repair != "" || f.Mount.Point == "" {
		return nil
	}
	purpose := "removes the dead mount, unless it answers. Start what mounts it first: until it is mounted again, writes go to the node's own disk"
	if f.Details.PodState == PodDeleting && f.Details.Place == PlaceInsideVolume {
		purpose = "removes the dead mount, unless it answers, so that the kubelet can remove the pod's directory; only once no container of the pod runs"
	}
	return c.onMount(Command{Purpose: purpose, Effect: EffectLoss}, f.Mount.Point, "stat -- %s", "umount -- %s")
}

// releaseDevice has kubediag unmount the copies where they are. No other line enters the namespace of a container.
func (c *Case) releaseDevice() []Command {
	f := c.Finding
	if f.Details.Repair == "" || f.Details.Device == "" {
		return nil
	}
	return c.verb(Command{asksFirst, "release", EffectRepair}, "", f.Details.Device)
}

func (c *Case) showHolders() []Command {
	f := c.Finding
	if f.Details.Device == "" {
		return nil
	}
	return c.verb(Command{"shows everything that holds the device, and what prevents it", "holders", EffectNone}, "", f.Details.Device)
}

// recoverDirectory has kubediag remove the empty directories of a pod that is gone.
func (c *Case) recoverDirectory() []Command {
	f := c.Finding
	if f.Details.Repair == "" || f.Pod.UID == "" {
		return nil
	}
	return c.verb(Command{asksFirst, "recover", EffectRepair}, c.Caller.Pods, f.Pod.UID)
}

func (c *Case) listDirectory() []Command {
	f := c.Finding
	if f.Details.Path == "" {
		return nil
	}
	return c.onMount(Command{Purpose: "lists what is left", Effect: EffectNone}, f.Details.Path, "find %s -xdev -ls")
}

// verb is a command of kubediag, whose line is the verb, with its flags and one word.
func (c *Case) verb(command Command, flags, word string) []Command {
	if !isWord(word) {
		return []Command{c.byVerb(noWord)}
	}
	command.Line = "kubediag " + command.Line + c.Caller.Flags + flags + " " + Quote(word)
	return []Command{command}
}

// podCommand is a call of kubectl about the pod, if its name is known.
func (c *Case) podCommand(command Command) []Command {
	f := c.Finding
	if f.Pod.Name == "" {
		return nil
	}
	command.Line = "kubectl -n %s " + command.Line
	return c.paste(command, f.Pod.Namespace, f.Pod.Name)
}
