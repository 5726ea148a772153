// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// The faults of the catalogue.
const (
	// DeletedVolumeSource: a volume answers, but is bound to a directory that was deleted or replaced, or is not the volume's.
	DeletedVolumeSource Code = "DeletedVolumeSource"
	// DisconnectedFUSE: the daemon that serves a volume is gone, or the server has ended its session.
	DisconnectedFUSE Code = "DisconnectedFUSE"
	// HungMount: a mount does not answer.
	HungMount Code = "HungMount"
	// OrphanedPodVolumes: the kubelet cannot remove the directory of a pod that is gone, because volumes of it are left.
	OrphanedPodVolumes Code = "OrphanedPodVolumes"
	// StaleFileHandle: the server of a volume does not know the directory any more that the volume is.
	StaleFileHandle Code = "StaleFileHandle"
	// HeldDevice: a block device cannot be detached because something that the host does not show has it still.
	HeldDevice Code = "HeldDevice"
	// StaleSubPath: the source of a subPath bind was deleted or replaced, and the kubelet does not renew the bind by itself.
	StaleSubPath Code = "StaleSubPath"
	// MissingBindSource: the source of a mount into a container does not exist.
	MissingBindSource Code = "MissingBindSource"
	// SourceTypeMismatch: a file is to be mounted onto a directory, or the reverse.
	SourceTypeMismatch Code = "SourceTypeMismatch"
)

// waitsForDriver is the NoPlan of faults that the driver of a volume can end, and driverNext their Next.
const (
	waitsForDriver = "nothing yet: replace the mount once the driver has mounted the volume again"
	driverNext     = "have the driver mount the volume again and create another Diagnosis"
)

// Losses when a broken mount is replaced.
const (
	loseNothing  = "nothing: no file is removed; open files stay open, and new opens reach the volume"
	loseOpen     = "nothing: files that are open there keep failing"
	lostByDaemon = "nothing: data that was not stored was lost when the daemon ended; files that are open there keep failing"
)

// Alerts of config/alerts/kubediag.yaml.
var (
	alertsOfVolumes = []string{"VolumeBroken", "ManyVolumesDead"}
	alertsOfStarts  = []string{"ContainerCannotStart"}
	alertsOfOrphans = []string{"VolumesLeftBehind"}
	alertsOfDevices = []string{"DeviceHeld"}
)

var knownFaults = Catalogue{
	deletedVolumeSource, disconnectedFUSE, heldDevice, heldMount, hungMount, leftoverStaging, missingBindSource, orphanedPodVolumes, sourceTypeMismatch,
	stackedMounts, staleFileHandle, staleSubPath, stuckTermination, volumeIOError, wrongSubPath,
}

// Known returns the catalogue of kubediag. Nothing changes it.
func Known() Catalogue { return knownFaults }

var deletedVolumeSource = Entry{
	Code:     DeletedVolumeSource,
	Title:    "A volume is bound to a directory that was deleted or replaced, or that is not the volume's",
	Severity: Critical,
	Repair: "replace the mount with the same directory of the driver's staged mount, on the host and in running containers; if there " +
		"is none, evict the pod",
	Chinese: Translation{
		Title:  "卷绑定在已被删除或替换的目录上，或者绑定在不属于这个卷的目录上",
		Repair: "用驱动 stage 的挂载里的同一目录替换这个挂载，包括主机上的和运行中的容器里的；如果没有，就驱逐 Pod",
	},

	Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksMount,
	Searches:  []Search{SearchVolumes},
	Operation: "volume-rebind-recover",
	Actions:   []ActionKind{Replace, RemoveContainerRecord, Evict},
	Alerts:    alertsOfVolumes,

	Symptom: Symptom{
		Impact: always(ImpactNow),
		Fact:   always("its directory was deleted or replaced, or is not the volume's"),
		BySpec: outside,
	},
	Ways:   map[ActionKind]Way{Replace: {takesItsPlace, always(putBeneath)}},
	At:     atVolumes(remedyLines{(*Case).recoverPod, (*Case).deletePod}, remedyLines{(*Case).recoverPod}, startDaemonFirst, startDaemonThenContainer),
	Loss:   loseNothing,
	NoPlan: waitsForDriver,
	Next:   driverNext,
	Prevention: Prevention{
		None: "no change of the pod can: another client of the volume has removed the directory, the driver has mounted over a directory that was not empty, or the disk " +
			"of a local volume was mounted after the pod had started",
	},

	Without: []string{"Symptom.Culprit", "Prevention.Change"},
}

var disconnectedFUSE = Entry{
	Code:     DisconnectedFUSE,
	Title:    "The daemon of a volume is gone, or its session was ended by the server",
	Severity: Critical,
	Repair: "replace the dead mount with the one that the driver mounted again, on the host and in running containers; if there is " +
		"none, evict the pod; unmount a dead mount of the node that hides a living one, or whose pod is going",
	Chinese: Translation{
		Title: "卷的守护进程已退出，或者服务端结束了它的会话",
		Repair: "用驱动重新挂载的挂载替换失效的挂载，包括主机上的和运行中的容器里的；如果没有，就驱逐 Pod；" +
			"节点自己的失效挂载，如果遮住了一个正常的挂载，或者它的 Pod 正在删除，就卸载它",
	},

	Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksFileSystem,
	Searches:  []Search{SearchVolumes},
	Operation: "volume-rebind-recover",
	Actions:   []ActionKind{Replace, Unmount, RemoveContainerRecord, Evict},
	Alerts:    alertsOfVolumes,

	Symptom: Symptom{
		Impact: always(ImpactNow),
		Fact:   connectionGone,
		BySpec: outside,
	},
	Ways: map[ActionKind]Way{
		Replace: {driverIsBack, always(putBeneath)},
		Unmount: {whyUnmount("a living mount of the same source lies beneath it"), always("unmount this one dead mount, and nothing that answers")},
	},
	At:     deadAtVolumes(),
	Loss:   lostByDaemon,
	NoPlan: waitsForDriver,
	Next:   driverNext,
	Prevention: Prevention{
		Change: preventDisconnected,
		None:   "it is not known what has mounted it",
	},

	Without: []string{"Symptom.Culprit"},
}

var heldDevice = Entry{
	Code:     HeldDevice,
	Title:    "A device cannot be detached because something that the host does not show holds it",
	Severity: Critical,
	Repair:   "unmount every copy in the mount namespace that has it, without ending a process; then detach the device",
	Chinese: Translation{
		Title:  "设备无法 detach，因为主机上看不到的某处占用着它",
		Repair: "在副本所在的挂载命名空间里逐个卸载，不结束任何进程，然后 detach 设备",
	},

	Family: FamilyDevice, Scope: ScopeDevice, Breaks: BreaksNothing,
	Searches:  []Search{SearchDevices},
	Operation: "held-device-recover",
	Actions:   []ActionKind{Unmount, Detach},
	Alerts:    alertsOfDevices,

	Symptom: Symptom{
		Impact: always(ImpactDetach),
		Fact: func(f Finding) string {
			if f.Details.Path != "" {
				return "the loop device is left over from a raw block volume of a pod that is gone"
			}
			return "the device is still mounted elsewhere"
		},
		BySpec:  byKernel,
		Culprit: heldBy,
	},
	Ways: map[ActionKind]Way{
		Unmount: {whyUnmount(""), always("unmount this copy in the mount namespace that has it, and detach the device; no process ends")},
		Detach:  {always("nothing uses it"), always("detach the loop device, while nothing uses it; the data behind it is not touched")},
	},
	At:     remedyAt(ofHolder, PlaceDevice, PlaceUnknown),
	NoPlan: "nothing by itself: what holds the device is in use, or no copy of a mount of the kubelet",
	Next:   "end what uses the device, or unmount it where it is held; kubediag holders, on the node, shows where",
	Prevention: Prevention{
		Change: preventHeld,
		None:   "no pod is known to have brought in the copy, or the kubelet has left the loop device",
	},

	Without: []string{"Loss"}, // no mount is replaced
}

// hungLines are the commands at a mount that does not answer.
var hungLines = remedyLines{(*Case).recoverPod, (*Case).hungCommands}

var hungMount = Entry{
	Code:     HungMount,
	Title:    "A mount does not answer",
	Severity: Critical,
	Repair:   "none by itself: the daemon or the server must answer again; the FUSE connection is aborted on explicit request only",
	Chinese: Translation{
		Title:  "挂载没有应答",
		Repair: "不自动修复：守护进程或服务端必须恢复应答；只有明确要求时才中止 FUSE 连接",
	},

	Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksCallers,
	Searches:  []Search{SearchVolumes},
	Operation: "volume-rebind-recover",
	Actions:   []ActionKind{Abort, Replace, RemoveContainerRecord, Evict},
	Alerts:    alertsOfVolumes,

	Symptom: Symptom{
		Impact:  always(ImpactNow),
		Fact:    always("it does not answer"),
		BySpec:  outside,
		Culprit: hungDaemon,
	},
	Ways:   map[ActionKind]Way{Replace: {takesItsPlace, always(putBeneath)}},
	At:     atVolumes(hungLines, hungLines, nil, nil), // a hung mount may answer again, and keeps a pod that is deleted
	Loss:   lostByDaemon,
	NoPlan: "nothing by itself: the daemon or the server must answer again",
	Next: "have its daemon or server answer again; if it never will, create a Diagnosis with the parameter " +
		"param.recover.kubernetes.volume_rebind.abort \"true\", which loses what is not stored yet",
	Prevention: Prevention{
		Change: preventHung,
		None:   "only the server can: a timeout of the client would turn a wait into lost writes",
	},
}

var missingBindSource = Entry{
	Code:     MissingBindSource,
	Title:    "The source of a mount does not exist",
	Severity: Critical,
	Repair:   "none: a person must create the missing file or directory, start the daemon of the socket, or change the volume",
	Chinese: Translation{
		Title:  "挂载的源不存在",
		Repair: "挂载无法修复它：需要创建缺少的文件或目录，启动提供 socket 的守护进程，或者修改卷",
	},

	Family: FamilyBind, Scope: ScopeContainer, Breaks: BreaksNothing,
	Searches: []Search{SearchSubPaths, SearchSources, SearchVolumes},
	Actions:  []ActionKind{Evict},
	Alerts:   alertsOfStarts,

	Symptom: Symptom{
		Impact: unlessItRuns,
		Fact:   always("its source does not exist"),
		BySpec: bySpec,
	},
	At: map[Place]Remedy{
		PlaceSource: ofSpec, PlaceSubPath: ofSpec, PlaceHostPath: ofSpec, PlaceUnknown: ofSpec,
		PlaceSocket: {
			Commands: remedyLines{(*Case).showPod}, NoPlan: always("nothing: the daemon that makes the socket has to be started, or the volume changed"),
			Next: always("start the daemon that makes the socket, or change the volume in the pod's template"),
		},
	},
	NoPlan: "nothing: the missing file or directory has to be created, or the volume changed",
	Next:   "create the missing file or directory, start the daemon if it is a socket, or change the volume in the pod's template",
	Prevention: Prevention{
		Change: preventMissing,
		None:   "only the daemon that makes the socket can: an entry that the kubelet makes in its place would be of the wrong kind",
	},

	Without: []string{"Operation", "Symptom.Culprit", "Ways", "Loss"},
}

var orphanedPodVolumes = Entry{
	Code:     OrphanedPodVolumes,
	Title:    "Volumes of a pod that is gone are left in the kubelet's directory",
	Severity: Warning,
	Repair: "remove the empty directories, leaf first, once no mount namespace has a mount of them; anything that may be data " +
		"stays",
	Chinese: Translation{
		Title:  "Pod 已不存在，它的卷还留在 kubelet 的目录里",
		Repair: "在没有任何挂载命名空间挂载它们之后，从最里层开始删除空目录；可能是数据的内容都保留",
	},

	Family: FamilyOrphan, Scope: ScopeDirectory, Breaks: BreaksNothing,
	Searches:  []Search{SearchOrphans},
	Operation: "orphaned-pod-recover",
	Actions:   []ActionKind{RemoveDirectory, RemoveFile},
	Alerts:    alertsOfOrphans,

	Symptom: Symptom{
		Impact: always(ImpactCleanup),
		Fact:   always("the pod is gone and its directory is left"),
		BySpec: bySpec,
	},
	Ways:   map[ActionKind]Way{RemoveDirectory: {always(""), always("remove the empty directories that are left, and nothing that may be data")}},
	At:     remedyAt(Remedy{Commands: remedyLines{(*Case).recoverDirectory, (*Case).listDirectory}}, PlacePodDirectory, PlaceUnknown),
	NoPlan: "nothing: a person has to look at what is left",
	Next:   "look at what is left in the directory before you remove it by hand",
	Prevention: Prevention{
		Change: always("drain the node before its kubelet is stopped for good or its runtime is reset, and remove a CSI driver only after the pods that use it"),
	},

	Without: []string{"Symptom.Culprit", "Loss", "Prevention.None"},
}

var sourceTypeMismatch = Entry{
	Code:     SourceTypeMismatch,
	Title:    "A file is mounted onto a directory, or a directory onto a file",
	Severity: Critical,
	Repair:   "none: a person must change subPath, mountPath or the type of the hostPath in the pod's template",
	Chinese: Translation{
		Title:  "文件挂到了目录上，或者目录挂到了文件上",
		Repair: "挂载无法修复它：需要修改 Pod 模板里的 subPath、mountPath 或者 hostPath 的类型",
	},

	Family: FamilyBind, Scope: ScopeContainer, Breaks: BreaksNothing,
	Searches: []Search{SearchSources, SearchVolumes},
	Actions:  []ActionKind{Evict},
	Alerts:   alertsOfStarts,

	Symptom: Symptom{
		Impact: unlessItRuns,
		Fact:   always("a file is mounted onto a directory, or the reverse"),
		BySpec: bySpec,
	},
	At: map[Place]Remedy{
		PlaceSource: ofSpec, PlaceHostPath: ofSpec, PlaceUnknown: ofSpec,
		PlaceSocket: {
			Commands: remedyLines{(*Case).showPod}, NoPlan: always("nothing: what lies in the place of the socket has to go, or the volume has to be changed"),
			Next: always("move away what lies in the place of the socket and start the daemon that makes it, or change the volume in the pod's template"),
		},
	},
	NoPlan: "nothing: subPath, mountPath or the type of the hostPath has to be changed in the pod's template",
	Next:   "change subPath, mountPath or the type of the hostPath in the pod's template",
	Prevention: Prevention{
		Change: preventMismatch,
	},

	Without: []string{"Operation", "Symptom.Culprit", "Ways", "Loss", "Prevention.None"},
}

var staleFileHandle = Entry{
	Code:     StaleFileHandle,
	Title:    "The server does not know the directory of a volume any more",
	Severity: Critical,
	Repair:   "replace it with the driver's staged mount if that answers; otherwise restore the export on the server, or evict the pod",
	Chinese: Translation{
		Title:  "服务端不再认识卷的目录",
		Repair: "如果驱动 stage 的挂载有应答，就用它替换；否则在服务端恢复导出，或者驱逐 Pod",
	},

	Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksMount,
	Searches:  []Search{SearchVolumes},
	Operation: "volume-rebind-recover",
	Actions:   []ActionKind{Replace, RemoveContainerRecord, Evict},
	Alerts:    alertsOfVolumes,

	Symptom: Symptom{
		Impact: always(ImpactNow),
		Fact:   always("the server no longer knows its directory"),
		BySpec: outside,
	},
	Ways:   map[ActionKind]Way{Replace: {takesItsPlace, always(putBeneath)}},
	At:     deadAtVolumes(),
	Loss:   loseOpen,
	NoPlan: waitsForDriver,
	Next:   "restore the export on the server",
	Prevention: Prevention{
		None: "no change of the pod can: the server has lost the directory, or exports another file system under its number",
	},

	Without: []string{"Symptom.Culprit", "Prevention.Change"},
}

var staleSubPath = Entry{
	Code:     StaleSubPath,
	Title:    "A subPath is still bound to a file that was deleted or replaced",
	Severity: Critical,
	Repair: "unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is " +
		"brought forward",
	Chinese: Translation{
		Title:  "subPath 仍绑定在已被删除或替换的文件上",
		Repair: "只卸载这一个挂载，如果当前的文件或目录存在，就把它绑定到原来的位置；并让容器提前重新启动",
	},

	Family: FamilyBind, Scope: ScopeContainer, Breaks: BreaksMount,
	Searches:  []Search{SearchSubPaths},
	Operation: "subpath-remount-recover",
	Actions:   []ActionKind{Unmount, RemoveContainerRecord},
	Alerts:    alertsOfStarts,

	Symptom: Symptom{
		Impact: unlessItRuns,
		Fact:   always("the file it is bound to was deleted or replaced"),
		BySpec: moved,
	},
	Ways: map[ActionKind]Way{
		Replace: {always(""), replaceBind},
		Unmount: {whyUnmount(""), always("unmount this one dead bind, which keeps its pod from going")},
	},
	At:     remedyAt(Remedy{Commands: remedyLines{(*Case).recoverPod, (*Case).unmountStaleBind}}, PlaceSubPath, PlaceUnknown),
	NoPlan: "nothing by itself: the kubelet has to bind the current file",
	Next:   "create another Diagnosis once that is solved",
	Prevention: Prevention{
		Change: preventStaleSubPath,
	},

	Without: []string{"Symptom.Culprit", "Loss", "Prevention.None"},
}
