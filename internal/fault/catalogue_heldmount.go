// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// HeldMount: a file system on no device, which the kubelet has unmounted, is still mounted in another mount namespace.
const HeldMount Code = "HeldMount"

var heldMount = Entry{
	Code:     HeldMount,
	Title:    "A file system that the kubelet has unmounted is still mounted in another mount namespace",
	Severity: Warning,
	Repair:   "unmount every copy in the mount namespace that has it, without ending a process",
	Chinese: Translation{
		Title:  "kubelet 已经卸载的文件系统仍然挂载在另一个挂载命名空间里",
		Repair: "在副本所在的挂载命名空间里逐个卸载，不结束任何进程",
	},

	Family: FamilyDevice, Scope: ScopeDevice, Breaks: BreaksNothing,
	Searches:  []Search{SearchDevices},
	Operation: "held-device-recover",
	Actions:   []ActionKind{Unmount},
	Alerts:    alertsOfDevices,

	Symptom: Symptom{
		Impact:  always(ImpactDetach),
		Fact:    always("its file system is still mounted elsewhere"),
		BySpec:  byKernel,
		Culprit: heldBy,
	},
	Ways: map[ActionKind]Way{
		Unmount: {whyUnmount(""), always("unmount this copy in the mount namespace that has it; no process ends")},
	},
	At:     remedyAt(ofHolder, PlaceDevice, PlaceUnknown),
	NoPlan: "nothing by itself: what holds the file system is in use, or no copy of a mount of the kubelet",
	Next:   "end what uses the file system, or unmount it where it is held; kubediag holders, on the node, shows where",
	Prevention: Prevention{
		Change: preventHeld,
		None:   "no pod is known to have brought in the copy",
	},

	Without: []string{"Loss"}, // no mount is replaced
}
