// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/processor"
)

// brokenVolume is one broken volume as it is written down.
type brokenVolume struct {
	Code fault.Code `json:"code,omitempty"` // empty if only copies are broken
	volumePlace
	// State is the answer of the mount.
	State    probe.State `json:"state,omitempty"`
	Evidence []string    `json:"evidence,omitempty"`
	volumeOrigin
	Copies []brokenCopy `json:"copies,omitempty"`
	// MoreCopies is how many others there are.
	MoreCopies int         `json:"moreCopies,omitempty"`
	SharedWith []fault.Pod `json:"shares,omitempty"`
	DaemonExit []string    `json:"fate,omitempty"`
	// WrittenToNodeDisk has names of entries that were written to the node's own disk instead of to the volume.
	WrittenToNodeDisk []string `json:"split,omitempty"`
}

// volumeOrigin has the known facts about the origin of a volume.
type volumeOrigin struct {
	// Record is the kubelet's own, or NoRecord says why there is none.
	Record   *kubelet.VolumeRecord `json:"record,omitempty"`
	NoRecord string                `json:"noRecord,omitempty"`
	// Staging is where the driver has mounted it for the node.
	Staging string `json:"staging,omitempty"`
	// Source is the mount that belongs in its place, or NoSource says why none is known.
	Source   *volume.Source `json:"source,omitempty"`
	NoSource string         `json:"noSource,omitempty"`
}

// brokenCopy is a broken mount of the volume at another place.
type brokenCopy struct {
	listedCopy
	SubPath string `json:"subPath,omitempty"`
	// Replaceable is whether it may be replaced if there is a source, and Reason why, or why not.
	Replaceable bool   `json:"replaceable"`
	Reason      string `json:"why,omitempty"`
}

func describeBroken(health *volume.Health, reasons []string) brokenVolume {
	d := brokenVolume{
		Code: health.Verdict.Code, volumePlace: volumePlaceOf(health), State: health.Evidence.Answer.State,
		volumeOrigin: volumeOrigin{
			Record: health.Evidence.Record, NoRecord: health.Evidence.NoRecordReason, Source: health.Replacement.Source, NoSource: health.Replacement.NoSourceReason,
		},
		WrittenToNodeDisk: health.Replacement.WrittenToNodeDisk, DaemonExit: reasons,
		Evidence:   health.Verdict.Reasons[:min(len(health.Verdict.Reasons), maxBrokenEvidence)],
		SharedWith: health.Surroundings.SharedWith[:min(len(health.Surroundings.SharedWith), maxSharedWith)],
		MoreCopies: max(0, len(health.Copies)-maxCopies),
	}
	if health.Evidence.Staging != nil {
		d.Staging = health.Evidence.Staging.Point
	}
	if health.Replacement.Source != nil {
		d.NoSource = ""
	}
	for _, c := range health.Copies[:min(len(health.Copies), maxCopies)] {
		d.Copies = append(d.Copies, brokenCopy{listedCopyOf(c), c.SubPath, c.Decision.Replaceable, c.Decision.Reason})
	}
	return d
}

// Excerpt keeps as many whole entries of a list as there is room for.
func (*Diagnoser) Excerpt(_ processor.Request, _, value string, limit int) string {
	return processor.ExcerptList(value, limit)
}
