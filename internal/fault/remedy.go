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

// remedy is what a person can do about a fault of one code at one place.
type remedy struct {
	// newPod is whether a new pod gets another mount, which works.
	newPod bool
	// commands are lines for a shell, in the order in which a person would try them.
	commands []func(Finding, Caller) []Command
	// next is what a person does if kubediag repairs nothing, and noPlan why it does not. Nil or empty: what the catalogue says.
	next   func(Finding) string
	noPlan string
}

// remedies has an entry for each code and each place where the code is found. It is set once, since its functions use it.
var remedies map[Code]map[Place]remedy

func init() {
	remedies = map[Code]map[Place]remedy{
		DeletedVolumeSource: volumeRemedies(),
		DisconnectedFUSE:    volumeRemedies(),
		HungMount:           volumeRemedies(hungCommands),
		StaleFileHandle:     volumeRemedies(),
		VolumeIOError:       ioErrorRemedies(),
		StaleSubPath:        {PlaceSubPath: {commands: lines(recoverPod, unmountStaleBind)}},
		MissingBindSource: {
			PlaceSource: {commands: lines(showPod)}, PlaceSubPath: {commands: lines(showPod)}, PlaceHostPath: {commands: lines(showPod)},
			PlaceSocket: {
				commands: lines(showPod), noPlan: "nothing: the daemon that makes the socket has to be started, or the volume changed",
				next: always("start the daemon that makes the socket, or change the volume in the pod's template"),
			},
		},
		SourceTypeMismatch: {
			PlaceSource: {commands: lines(showPod)}, PlaceHostPath: {commands: lines(showPod)},
			PlaceSocket: {
				commands: lines(showPod), noPlan: "nothing: what lies in the place of the socket has to go, or the volume has to be changed",
				next: always("move away what lies in the place of the socket and start the daemon that makes it, or change the volume in the pod's template"),
			},
		},
		HeldDevice:         {PlaceDevice: {commands: lines(releaseDevice, showHolders)}},
		OrphanedPodVolumes: {PlacePodDirectory: {commands: lines(recoverDirectory, listDirectory)}},
	}
}

func lines(list ...func(Finding, Caller) []Command) []func(Finding, Caller) []Command { return list }

// volumeRemedies are those of a volume that is broken as a whole. A driver mounts its volume again for a new pod. A
// mount of the node, or one that a workload has made, stays as it is.
func volumeRemedies(first ...func(Finding, Caller) []Command) map[Place]remedy {
	mounted := remedy{newPod: true, commands: append(lines(recoverPod), first...)}
	other := remedy{commands: append(lines(recoverPod), first...), next: startDaemonFirst}
	if len(first) == 0 { // one that does not answer may do so again, and keeps a pod that is deleted
		mounted.commands, other.commands = append(mounted.commands, deletePod), append(other.commands, unmountDead)
	}
	copied := mounted
	copied.next = startDaemonThenContainer
	return map[Place]remedy{
		PlaceVolume: mounted, PlaceSubPath: mounted, PlaceContainer: copied, PlaceHostPath: other, PlaceInsideVolume: other,
	}
}

// always is a next step that is the same for each finding.
func always(text string) func(Finding) string { return func(Finding) string { return text } }

// ioErrorRemedies are those of a volume that answers with an error: a disk or a server has to be repaired first.
func ioErrorRemedies() map[Place]remedy {
	r := remedy{commands: lines(recoverPod, showErrors)}
	return map[Place]remedy{PlaceVolume: r, PlaceSubPath: r, PlaceContainer: r, PlaceHostPath: r, PlaceInsideVolume: r}
}

// showErrors shows the errors that the kernel has met.
func showErrors(Finding, Caller) []Command {
	return []Command{{
		"shows errors of file systems, disks and servers in the kernel's log", "dmesg --level=emerg,alert,crit,err,warn", EffectNone,
	}}
}

// PlacesOf lists the places where the code is found, in the order of Places.
func (c Code) PlacesOf() (list []Place) {
	for _, place := range Places() {
		if _, ok := remedies[c][place]; ok {
			list = append(list, place)
		}
	}
	return list
}

// remedyOf is that of a finding. If the place of a volume is not known, nothing is: elsewhere one place is like another.
func remedyOf(f Finding) remedy {
	place := f.Details.Place
	if places := f.Code.PlacesOf(); place == "" && len(places) > 0 && f.Code.Entry().Family != FamilyVolume {
		place = places[0]
	}
	return remedies[f.Code][place]
}

// commandsOf are lines for a shell.
func commandsOf(f Finding, c Caller) (list []Command) {
	for _, of := range remedyOf(f).commands {
		for _, command := range of(f, c) {
			at := slices.IndexFunc(list, func(other Command) bool { return other.Line == command.Line })
			switch {
			case at < 0:
				list = append(list, command)
			case strings.Contains(command.Purpose, notPasted):
				list[at] = command
			}
		}
	}
	return list
}

// notPasted is why a line is left out.
const notPasted = "no other line can be pasted: a name or path has control characters, or is a flag"

// IsWord reports whether a text can be a word of a line to paste. A terminal acts on control characters, and not every shell has a form for
// them. A name or path with a dash in front is a flag.
func IsWord(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) && !strings.HasPrefix(s, "-")
}

// paste is a command with words in its line. If one of them cannot be pasted, it is the verb of kubediag that does
// the same, or shows the fault.
func paste(f Finding, c Caller, command Command, words ...string) []Command {
	quoted := make([]any, len(words))
	for i, w := range words {
		if !IsWord(w) {
			return []Command{byVerb(f, c)}
		}
		quoted[i] = Quote(w)
	}
	command.Line = fmt.Sprintf(command.Line, quoted...)
	return []Command{command}
}

// byVerb is the verb of kubediag for a fault that has a name or path which cannot be pasted.
func byVerb(f Finding, c Caller) Command {
	recovers := func(word string) Command {
		return Command{asksFirst + "; " + notPasted, "kubediag recover" + c.Flags + c.Pods + " " + Quote(word), EffectRepair}
	}
	pod := f.Pod.Namespace + "/" + f.Pod.Name
	switch {
	case f.Details.Repair == "", f.Code.Entry().Family == FamilyDevice:
	case f.Pod.Name != "" && IsWord(pod):
		return recovers(pod)
	case f.Pod.UID != "" && IsWord(f.Pod.UID):
		return recovers(f.Pod.UID)
	}
	return Command{"shows the fault and its evidence; " + notPasted, "kubediag scan --verbose" + c.Flags, EffectNone}
}

// EvictionHelps reports whether the fault cannot be repaired in place, and a new pod gets a mount that works.
func EvictionHelps(f Finding) bool {
	return f.Details.Repair == "" && newPodHelps(f)
}

// newPodHelps reports whether a new pod gets a mount that works, and no data is hidden by that. A pod that is not known
// may be evicted: the caller looks at the pod.
func newPodHelps(f Finding) bool {
	d := f.Details
	switch d.Refusal.Reason {
	case NodeMount, HasData, PodGoes:
		return false
	}
	return remedyOf(f).newPod && d.PodState != PodDeleting && d.PodState != PodEnded
}

// controller is the workload that makes the pod again after it was deleted; empty if none is known to.
func controller(f Finding) string {
	if f.Details.PodState != PodWanted || f.Details.Workload.Kind == "Node" { // a static pod
		return ""
	}
	return f.Details.Workload.String()
}

// NextStep is what a person does about a fault that kubediag does not repair.
func NextStep(f Finding) string {
	if next := remedyOf(f).next; next != nil {
		if text := next(f); text != "" {
			return text
		}
	}
	text := f.Code.Entry().Next
	if newPodHelps(f) && f.Details.SharedStaging > 0 {
		return text + ", or remove all pods of this node that use the volume: before that, a new pod here gets the same dead mount"
	}
	if by := controller(f); by != "" && newPodHelps(f) {
		text += fmt.Sprintf(", or delete the pod, which %s makes again", by)
	}
	return text
}

// startDaemonFirst is about a mount that no driver makes again for a pod.
func startDaemonFirst(f Finding) string {
	if f.Code == HungMount {
		return f.Code.Entry().Next
	}
	return fmt.Sprintf("start the program again that mounts %q, and then unmount what is broken: until it mounts again, writes go to the "+
		"node's own disk", f.Mount.Point)
}

// startDaemonThenContainer is about a container's copy of a mount that no driver makes again for a pod.
func startDaemonThenContainer(f Finding) string {
	if f.Details.Refusal.Reason != NodeMount || f.Code == HungMount {
		return ""
	}
	return fmt.Sprintf("start the program again that mounts what container %q has at %q, and then have the container start again, which keeps the "+
		"broken mount until then", f.Container, f.Mount.Point)
}

// recoverPod has kubediag repair it.
func recoverPod(f Finding, c Caller) []Command {
	if f.Details.Repair == "" || f.Pod.Name == "" {
		return nil
	}
	return c.verb(f, Command{asksFirst, "recover", EffectRepair}, c.Pods, f.Pod.Namespace+"/"+f.Pod.Name)
}

// asksFirst is the purpose of a command of kubediag that repairs.
const asksFirst = "shows the plan, asks, repairs it and proves it"

// deletePod has a controller make another pod. It is left out if nothing makes one, or if that would get the same mount, as on this
// node while other pods use the volume that is staged.
func deletePod(f Finding, c Caller) []Command {
	switch by := controller(f); {
	case f.Details.Repair != "" || !newPodHelps(f) || f.Details.SharedStaging > 0 || f.Details.Workload.Kind == "Node":
		return nil
	case by == "":
		return showOwner(f, c)
	default:
		return podCommand(f, c, Command{"deletes the pod; " + by + " makes another, for which the volume is mounted again", "delete pod %s", EffectLoss})
	}
}

// showOwner shows what makes the pod again, if that is not known.
func showOwner(f Finding, c Caller) []Command {
	return podCommand(f, c, Command{"shows what made the pod: without a controller, a pod that is deleted is gone for good", "get pod %s -o yaml", EffectNone})
}

// showPod shows the spec of the pod, which has to be changed or lacks something on the node.
func showPod(f Finding, c Caller) []Command {
	return podCommand(f, c, Command{"shows what the pod mounts", "get pod %s -o yaml", EffectNone})
}

// unmountStaleBind removes a bind of the kubelet's, if kubediag would.
func unmountStaleBind(f Finding, c Caller) []Command {
	if f.Mount.Point == "" || f.Details.Repair == "" {
		return nil
	}
	purpose := "removes the stale bind; the kubelet binds the current file at the next start"
	if f.Details.Repair == Unmount || f.Details.PodState == PodDeleting || f.Details.PodState == PodEnded {
		purpose = "removes the stale bind, so that the kubelet can remove the pod's directory"
	}
	return paste(f, c, Command{purpose, c.enter() + "umount -- %s", EffectRepair}, f.Mount.Point)
}

// unmountDead removes a dead mount that no driver makes again.
func unmountDead(f Finding, c Caller) []Command {
	if f.Details.Repair != "" || f.Mount.Point == "" || f.Code == DeletedVolumeSource {
		return nil
	}
	purpose := "removes the dead mount. Start what mounts it first: until it is mounted again, writes go to the node's own disk"
	if f.Details.PodState == PodDeleting && f.Details.Place == PlaceInsideVolume {
		purpose = "removes the dead mount, so that the kubelet can remove the pod's directory; only once no container of the pod runs"
	}
	return paste(f, c, Command{purpose, c.enter() + "umount -- %s", EffectLoss}, f.Mount.Point)
}

// releaseDevice has kubediag unmount the copies where they are. No other line enters the namespace of a container.
func releaseDevice(f Finding, c Caller) []Command {
	if f.Details.Repair == "" || f.Details.Device == "" {
		return nil
	}
	return c.verb(f, Command{asksFirst, "release", EffectRepair}, "", f.Details.Device)
}

func showHolders(f Finding, c Caller) []Command {
	if f.Details.Device == "" {
		return nil
	}
	return c.verb(f, Command{"shows everything that holds the device, and what prevents it", "holders", EffectNone}, "", f.Details.Device)
}

// recoverDirectory has kubediag remove what is empty of a pod that is gone.
func recoverDirectory(f Finding, c Caller) []Command {
	if f.Details.Repair == "" || f.Pod.UID == "" {
		return nil
	}
	return c.verb(f, Command{asksFirst, "recover", EffectRepair}, c.Pods, f.Pod.UID)
}

func listDirectory(f Finding, c Caller) []Command {
	if f.Details.Path == "" {
		return nil
	}
	return paste(f, c, Command{"lists what is left", c.enter() + "find %s -xdev -ls", EffectNone}, f.Details.Path)
}

// enter begins a line that has to run in the kubelet's mount namespace.
func (c Caller) enter() string {
	if c.Enter == 0 {
		return ""
	}
	return fmt.Sprintf("nsenter -t %d -m ", c.Enter)
}

// verb is a command of kubediag, whose line is the verb, with its flags and one word.
func (c Caller) verb(f Finding, command Command, flags, word string) []Command {
	if !IsWord(word) {
		return []Command{byVerb(f, c)}
	}
	command.Line = "kubediag " + command.Line + c.Flags + flags + " " + Quote(word)
	return []Command{command}
}

// podCommand is a call of kubectl about the pod, if its name is known.
func podCommand(f Finding, c Caller, command Command) []Command {
	if f.Pod.Name == "" {
		return nil
	}
	command.Line = "kubectl -n %s " + command.Line
	return paste(f, c, command, f.Pod.Namespace, f.Pod.Name)
}
