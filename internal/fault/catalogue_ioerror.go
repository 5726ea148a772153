// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// VolumeIOError: the file system of a volume answers with an error that no change of mounts repairs.
const VolumeIOError Code = "VolumeIOError"

func volumeIOError() Entry {
	lines := commands((*Case).recoverPod, (*Case).showErrors)
	remedy := Remedy{Commands: lines}
	return Entry{
		Code:     VolumeIOError,
		Title:    "The file system of a volume answers with an error",
		Severity: Critical,
		Repair:   "none: a person must repair the server, the network or the disk; then the volume is mounted again",
		Chinese: Translation{
			Title:  "卷的文件系统回答错误",
			Repair: "挂载无法修复它：需要修复服务端、网络或磁盘，然后重新挂载卷",
		},

		Family: FamilyVolume, Scope: ScopeVolume, Breaks: BreaksMount,
		Searches: []Search{SearchVolumes},
		Alerts:   alertsOfVolumes,

		Impact: always(ImpactNow),
		Fact:   always("its file system answers with an error"),
		BySpec: outside,
		At: map[Place]Remedy{
			PlaceVolume: remedy, PlaceSubPath: remedy, PlaceContainer: remedy, PlaceHostPath: remedy, PlaceInsideVolume: remedy, PlaceUnknown: {},
		},
		NoPlan:      "nothing: the cause is the server, the network or the disk of the volume, and no mount of this node",
		Next:        "repair the server, the network or the disk of the volume, and then have the volume mounted again",
		Unprevented: "no change of the pod can: the disk, or the server, has failed",

		Without: []string{"Operation", "Actions", "Culprit", "Ways", "Loss", "Prevent"},
	}
}
