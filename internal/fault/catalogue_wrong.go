// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// WrongSubPath: a subPath bind shows another directory than the pod's spec names.
const WrongSubPath Code = "WrongSubPath"

var wrongSubPath = Entry{
	Code:     WrongSubPath,
	Title:    "A subPath shows another directory of the volume than the pod's spec names",
	Severity: Critical,
	Repair: "none while a container has it: a link in the volume that was changed since looks the same; delete the pod, so that the " +
		"kubelet binds the right directory",
	Chinese: Translation{
		Title:  "subPath 显示的不是 Pod 的 spec 指定的目录，而是卷里的另一个目录",
		Repair: "容器还在使用它时不修复：卷里的链接在启动之后被改动过，看起来也是这样；删除 Pod，让 kubelet 绑定正确的目录",
	},

	Family: FamilyBind, Scope: ScopeContainer, Breaks: BreaksNothing,
	Searches: []Search{SearchSubPaths},
	Alerts:   []string{"WrongDirectory"},

	Symptom: Symptom{
		Impact: always(ImpactNow),
		Fact:   always("it shows another directory than the spec names"),
		BySpec: bySpec,
	},
	At:     map[Place]Remedy{PlaceSubPath: {NewPod: true, Commands: remedyLines{(*Case).showPod, (*Case).deletePod}}, PlaceUnknown: {}},
	NoPlan: "nothing: a container has the directory, and another beneath it would change its data",
	Next:   "compare what the container has with the volume, stop the program that writes to the wrong directory, and update the driver of the volume",
	Prevention: Prevention{
		Change: mountWholeVolume,
	},

	Without: []string{"Operation", "Actions", "Symptom.Culprit", "Ways", "Loss", "Prevention.None"},
}
