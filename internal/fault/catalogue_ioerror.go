// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

// VolumeIOError: the file system of a volume answers with an error that no change of mounts repairs.
const VolumeIOError Code = "VolumeIOError"

// ofServer is the remedy against the errors of a file system.
var ofServer = Remedy{Commands: remedyLines{(*Case).recoverPod, showErrors}}

var volumeIOError = Entry{
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

	Symptom: Symptom{
		Impact: always(ImpactNow),
		Fact:   always("its file system answers with an error"),
		BySpec: outside,
	},
	At: map[Place]Remedy{
		PlaceVolume: ofServer, PlaceSubPath: ofServer, PlaceContainer: ofServer, PlaceHostPath: ofServer, PlaceInsideVolume: ofServer, PlaceUnknown: {},
	},
	NoPlan: "nothing: the cause is the server, the network or the disk of the volume, and no mount of this node",
	Next:   "repair the server, the network or the disk of the volume, and then have the volume mounted again",
	Prevention: Prevention{
		None: "no change of the pod can: the disk, or the server, has failed",
	},

	Without: []string{"Operation", "Actions", "Symptom.Culprit", "Ways", "Loss", "Prevention.Change"},
}
