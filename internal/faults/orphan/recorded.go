// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"time"

	"kubediag.org/kubediag/internal/kubelet"
)

// Evidence is what was found of the directories of pods, and what was answered about them, so that it can be written
// down and judged again elsewhere.
type Evidence struct {
	KubeletRoot string    `json:"kubeletRoot"`
	Directories int       `json:"directories"`
	Skipped     []string  `json:"skipped,omitempty"`
	Coverage    *Coverage `json:"looked,omitempty"`
	// At is when it was looked, MinimumAge for how long nothing must have changed, in nanoseconds.
	At         time.Time     `json:"at,omitzero"`
	MinimumAge time.Duration `json:"minimumAge,omitempty"`
	// UnavailableSources says which sources could not be asked, and why; ServerAsked is whether the API server's pods
	// are known.
	UnavailableSources []string      `json:"unasked,omitempty"`
	ServerAsked        bool          `json:"serverAsked,omitempty"`
	Pods               []PodEvidence `json:"pods"`
}

// PodEvidence is what was found of one directory.
type PodEvidence struct {
	UID       string `json:"uid"`
	Path      string `json:"path"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// ContainerDoubt is why it is not proven that the pod has no container; empty: it is.
	ContainerDoubt string          `json:"contained,omitempty"`
	Entries        []EntryEvidence `json:"entries"`
	// Volumes and SubPaths are those of Pod.
	Volumes  []string `json:"volumes,omitempty"`
	SubPaths bool     `json:"subPaths,omitempty"`
	// Mounts are the first that show it to be in use, and AllMounts counts all.
	Mounts    []PodMount `json:"mounts,omitempty"`
	AllMounts int        `json:"allMounts,omitempty"`
}

// EntryEvidence is an entry of a directory with all that was read of it.
type EntryEvidence struct {
	Entry
	Inode        uint64                `json:"inode,omitempty"`
	Made         time.Time             `json:"made,omitzero"`
	Changed      time.Time             `json:"changed,omitzero"`
	Record       *kubelet.VolumeRecord `json:"record,omitempty"`
	NeededReason string                `json:"needed,omitempty"`
}

// Evidence is what the survey rests on.
func (s *Survey) Evidence() Evidence {
	evidence := Evidence{
		KubeletRoot: s.KubeletRoot, Directories: s.Directories, Skipped: s.Skipped, Coverage: s.Coverage, At: s.terms.now,
		MinimumAge: s.terms.minimumAge, UnavailableSources: s.UnavailableSources, ServerAsked: s.terms.serverAsked, Pods: []PodEvidence{},
	}
	for _, p := range s.Pods {
		of := PodEvidence{
			UID: p.UID, Path: p.Path, Namespace: p.Namespace, Name: p.Name, ContainerDoubt: p.containerDoubt,
			Volumes: p.Volumes, SubPaths: p.SubPaths,
			Mounts: p.mounts.examples, AllMounts: p.mounts.total,
		}
		for _, entry := range p.allEntries {
			of.Entries = append(of.Entries, EntryEvidence{entry, entry.inode, entry.birthTime, entry.changeTime, entry.record, entry.neededReason})
		}
		evidence.Pods = append(evidence.Pods, of)
	}
	return evidence
}

// Judge makes the survey again from evidence alone.
func (e Evidence) Judge() *Survey {
	terms := judgeTerms{e.At, e.MinimumAge, e.UnavailableSources, e.ServerAsked}
	survey := &Survey{
		KubeletRoot: e.KubeletRoot, Directories: e.Directories, Pods: []*Pod{},
		UnavailableSources: e.UnavailableSources, Skipped: e.Skipped, Coverage: e.Coverage, terms: terms,
	}
	looked := e.Coverage
	if looked == nil {
		looked = &Coverage{}
	}
	inspection := &inspection{Inspector: &Inspector{}}
	for _, of := range e.Pods {
		pod := &Pod{
			UID: of.UID, Path: of.Path, Namespace: of.Namespace, Name: of.Name, Volumes: of.Volumes, SubPaths: of.SubPaths,
			containerDoubt: of.ContainerDoubt, mounts: podUse{of.Mounts, of.AllMounts},
		}
		for _, entry := range of.Entries {
			one := entry.Entry
			one.inode, one.birthTime, one.changeTime = entry.Inode, entry.Made, entry.Changed
			one.record, one.neededReason = entry.Record, entry.NeededReason
			pod.allEntries = append(pod.allEntries, one)
			pod.hasKubeletFiles = pod.hasKubeletFiles || one.Kind == KubeletFile
		}
		inspection.judgePod(pod, terms, looked)
		survey.Pods = append(survey.Pods, pod)
	}
	return survey
}
