// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// LeftoverStaging: a volume is mounted for the whole node, and no pod of the node has it.
const LeftoverStaging Code = "LeftoverStaging"

var leftoverStaging = Entry{
	Code:     LeftoverStaging,
	Title:    "A volume is still mounted for the whole node, and no pod of the node has it",
	Severity: Warning,
	Repair: "unmount it while the kubelet has to wait for a controller to attach the volume, as the API server shows; else a new pod may have it staged " +
		"at any moment: cordon the node, make sure that the volume is neither attached nor in the node's volumesInUse, and unmount it then",
	Chinese: Translation{
		Title: "卷仍为整个节点挂载着，而节点上没有 Pod 使用它",
		Repair: "API server 表明 kubelet 必须先等控制器 attach 这个卷时，卸载它；否则新的 Pod 随时可能让驱动 stage 这个卷：先 cordon 节点，确认卷既没有 attach 到节点，" +
			"也不在节点的 volumesInUse 里，然后卸载",
	},

	Family: FamilyMount, Scope: ScopePlace, Breaks: BreaksNothing,
	Searches:  []Search{SearchStacks},
	Operation: "node-mount-recover",
	Actions:   []ActionKind{Unmount},
	Alerts:    []string{"MountsLeftBehind"},

	Symptom: Symptom{
		Impact: always(ImpactDetach),
		Fact:   always("no pod of this node has the volume"),
		BySpec: bySpec,
	},
	Ways: map[ActionKind]Way{
		Unmount: {always("the kubelet cannot have it staged before a controller has attached it"), always("unmount it, if that is still so and nothing uses it")},
	},
	At: map[Place]Remedy{
		PlaceStaging: {Commands: remedyLines{showAttachments, (*Case).unmountStaged}},
		PlaceUnknown: {},
	},
	NoPlan: "nothing: a new pod may have the volume staged there at any moment, and an unmount would then give it the node's own disk",
	Next: "cordon the node, wait until the volume has no VolumeAttachment for it and is not in its volumesInUse, and unmount it then; if a pod comes " +
		"back to the node, the kubelet has it unstaged by itself",
	Prevention: Prevention{
		Change: always("drain the node before its kubelet is stopped for good: the kubelet has each volume unstaged after its last pod, and forgets that at a restart"),
	},

	Without: []string{"Symptom.Culprit", "Loss", "Prevention.None"},
}

// showAttachments shows whether the kubelet may have the volume staged again.
var showAttachments = shows(
	Command{"shows which volumes are attached to which node", "kubectl get volumeattachments", EffectNone},
	Command{"shows which volumes the kubelets have in use", "kubectl get nodes -o custom-columns=NODE:.metadata.name,IN-USE:.status.volumesInUse", EffectNone},
)

// unmountStaged removes the mount. Only a person can say that no pod comes meanwhile.
func (c *Case) unmountStaged() []Command {
	if c.Finding.Details.Repair != "" {
		return nil
	}
	return c.onMount(Command{
		Purpose: "unmounts it, only once the node is cordoned and the volume is neither attached nor in use", Effect: EffectLoss,
	}, c.Finding.Mount.Point, "umount -- %s")
}
