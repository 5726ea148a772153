// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"time"

	"kubediag.org/kubediag/internal/linux/mountns"
)

// Evidence is what was found of the directories of pods, and what was answered about them, so that it can be written
// down and judged again elsewhere.
type Evidence struct {
	KubeletRoot string          `json:"kubeletRoot"`
	Directories int             `json:"directories"`
	Skipped     []string        `json:"skipped,omitempty"`
	Coverage    *mountns.Survey `json:"looked,omitempty"`
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
	Place
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
	EntryFacts
}

// Evidence is what the survey rests on.
func (s *Survey) Evidence() Evidence {
	evidence := Evidence{
		KubeletRoot: s.KubeletRoot, Directories: s.Directories, Skipped: s.Skipped, Coverage: s.Coverage, At: s.terms.now,
		MinimumAge: s.terms.minimumAge, UnavailableSources: s.UnavailableSources, ServerAsked: s.terms.serverAsked, Pods: []PodEvidence{},
	}
	for _, p := range s.Pods {
		of := PodEvidence{
			Place: p.Place, ContainerDoubt: p.containerDoubt, Volumes: p.Volumes, SubPaths: p.SubPaths,
			Mounts: p.mounts.examples, AllMounts: p.mounts.total,
		}
		for _, entry := range p.allEntries {
			of.Entries = append(of.Entries, EntryEvidence{entry, entry.facts})
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
		looked = &mountns.Survey{}
	}
	inspection := &inspection{inspector: &Inspector{}}
	for _, of := range e.Pods {
		pod := &Pod{
			Place: of.Place, Remains: Remains{Volumes: of.Volumes, SubPaths: of.SubPaths},
			containerDoubt: of.ContainerDoubt, mounts: podUse{of.Mounts, of.AllMounts},
		}
		for _, entry := range of.Entries {
			entry.facts = entry.EntryFacts
			pod.allEntries = append(pod.allEntries, entry.Entry)
		}
		inspection.judgePod(pod, terms, looked)
		survey.Pods = append(survey.Pods, pod)
	}
	return survey
}
