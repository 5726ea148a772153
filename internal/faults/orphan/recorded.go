// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"time"

	"kubediag.org/kubediag/internal/kubelet"
)

// Evidence is what was found of the directories of pods, and what was answered about them, so that it can be written down
// and judged again elsewhere.
type Evidence struct {
	KubeletRoot string   `json:"kubeletRoot"`
	Directories int      `json:"directories"`
	Skipped     []string `json:"skipped,omitempty"`
	Looked      *Looked  `json:"looked,omitempty"`
	// At is when it was looked, MinimumAge for how long nothing must have changed, in nanoseconds.
	At         time.Time     `json:"at,omitzero"`
	MinimumAge time.Duration `json:"minimumAge,omitempty"`
	// Unasked says which sources could not be asked, and why; ServerAsked is whether the API server's pods are known.
	Unasked     []string      `json:"unasked,omitempty"`
	ServerAsked bool          `json:"serverAsked,omitempty"`
	Pods        []PodEvidence `json:"pods"`
}

// PodEvidence is what was found of one directory.
type PodEvidence struct {
	UID       string `json:"uid"`
	Path      string `json:"path"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Contained is why it is not proven that the pod has no container; empty: it is.
	Contained string          `json:"contained,omitempty"`
	Entries   []EntryEvidence `json:"entries"`
	// Volumes and SubPaths are those of Pod.
	Volumes  []string `json:"volumes,omitempty"`
	SubPaths bool     `json:"subPaths,omitempty"`
	// Mounts are the first that show it to be in use, and AllMounts counts all.
	Mounts    []Mounted `json:"mounts,omitempty"`
	AllMounts int       `json:"allMounts,omitempty"`
}

// EntryEvidence is an entry of a directory with all that was read of it.
type EntryEvidence struct {
	Entry
	Inode   uint64                `json:"inode,omitempty"`
	Made    time.Time             `json:"made,omitzero"`
	Changed time.Time             `json:"changed,omitzero"`
	Record  *kubelet.VolumeRecord `json:"record,omitempty"`
	Needed  string                `json:"needed,omitempty"`
}

// Evidence is what the survey rests on.
func (s *Survey) Evidence() Evidence {
	e := Evidence{
		KubeletRoot: s.KubeletRoot, Directories: s.Directories, Skipped: s.Skipped, Looked: s.Looked, At: s.terms.at,
		MinimumAge: s.terms.minimumAge, Unasked: s.Unasked, ServerAsked: s.terms.server, Pods: []PodEvidence{},
	}
	for _, p := range s.Pods {
		of := PodEvidence{
			UID: p.UID, Path: p.Path, Namespace: p.Namespace, Name: p.Name, Contained: p.contained, Volumes: p.Volumes, SubPaths: p.SubPaths,
			Mounts: p.mounts.first, AllMounts: p.mounts.all,
		}
		for _, entry := range p.all {
			of.Entries = append(of.Entries, EntryEvidence{entry, entry.inode, entry.made, entry.changed, entry.record, entry.needed})
		}
		e.Pods = append(e.Pods, of)
	}
	return e
}

// Judge makes the survey again from evidence alone.
func (e Evidence) Judge() *Survey {
	t := terms{e.At, e.MinimumAge, e.Unasked, e.ServerAsked}
	s := &Survey{
		KubeletRoot: e.KubeletRoot, Directories: e.Directories, Pods: []*Pod{}, Unasked: e.Unasked, Skipped: e.Skipped, Looked: e.Looked, terms: t,
	}
	looked := e.Looked
	if looked == nil {
		looked = &Looked{}
	}
	l := &look{Inspector: &Inspector{}}
	for _, of := range e.Pods {
		p := &Pod{
			UID: of.UID, Path: of.Path, Namespace: of.Namespace, Name: of.Name, Volumes: of.Volumes, SubPaths: of.SubPaths,
			contained: of.Contained, mounts: use{of.Mounts, of.AllMounts},
		}
		for _, entry := range of.Entries {
			one := entry.Entry
			one.inode, one.made, one.changed, one.record, one.needed = entry.Inode, entry.Made, entry.Changed, entry.Record, entry.Needed
			p.all = append(p.all, one)
			p.files = p.files || one.Kind == KubeletFile
		}
		l.classify(p, t, looked)
		s.Pods = append(s.Pods, p)
	}
	return s
}
