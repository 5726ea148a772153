// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
)

// Recording is what the node has answered to an inspection, so that it can be written down and judged again elsewhere.
type Recording struct {
	Namespace uint64   `json:"namespace"`
	Coverage  Coverage `json:"coverage"`
	// Volumes are those that were asked, healthy ones included.
	Volumes []Recorded `json:"volumes"`
}

// Recorded is what the node has answered about one volume.
type Recorded struct {
	Evidence Evidence  `json:"evidence"`
	Location *Location `json:"location,omitempty"`
	// The rest is as in Health and Replacement.
	WrittenToNodeDisk []string       `json:"writtenToNodeDisk,omitempty"`
	Copies            []RecordedCopy `json:"copies,omitempty"`
	ForeignCopies     int            `json:"foreignCopies,omitempty"`
	SharedWith        []fault.Pod    `json:"sharedWith,omitempty"`
	SharedWithCount   int            `json:"sharedWithCount,omitempty"`
	DaemonNotes       []string       `json:"daemonNotes,omitempty"`
	Daemon            *fault.Process `json:"daemon,omitempty"`
}

// Location is where the volume's directory is in what the driver has staged.
type Location struct {
	Known  bool   `json:"known,omitempty"`
	Reason string `json:"reason,omitempty"`
	Below  string `json:"below,omitempty"`
	// OnNodeDisk is whether the pod has the directory of the node's own disk that the staged mount covers.
	OnNodeDisk bool   `json:"onNodeDisk,omitempty"`
	Major      uint32 `json:"major,omitempty"`
	Minor      uint32 `json:"minor,omitempty"`
	Covered    string `json:"covered,omitempty"`
}

// RecordedCopy is what the node has answered about one copy. Whether it can be replaced was decided there.
type RecordedCopy struct {
	Mount    mountns.Mount `json:"mount"`
	Holder   Holder        `json:"holder"`
	SubPath  string        `json:"subPath,omitempty"`
	Answer   probe.Answer  `json:"answer"`
	Decision Decision      `json:"decision"`
	Source   *Source       `json:"source,omitempty"`
	// OnHost is whether it is a subPath bind of the kubelet.
	OnHost bool `json:"onHost,omitempty"`
}

// Record writes down what the survey rests on.
func (s *Survey) Record() Recording {
	r := Recording{Namespace: s.Namespace, Coverage: s.Coverage, Volumes: []Recorded{}}
	for _, v := range s.Volumes {
		of := Recorded{
			Evidence: v.Evidence, WrittenToNodeDisk: v.WrittenToNodeDisk, ForeignCopies: v.ForeignCopies, SharedWith: v.SharedWith,
			SharedWithCount: v.SharedWithCount, DaemonNotes: v.DaemonNotes, Daemon: v.Daemon,
		}
		if at := v.location(); v.Staging != nil {
			of.Location = &Location{at.known, at.reason, at.below, at.onNodeDisk, at.disk.major, at.disk.minor, at.covered}
		}
		for _, c := range v.Copies {
			of.Copies = append(of.Copies, RecordedCopy{c.Mount, c.Holder, c.SubPath, c.Answer, c.Decision, c.Source, c.origin.onHost})
		}
		r.Volumes = append(r.Volumes, of)
	}
	return r
}

// Judge makes the survey again from what was written down. podOf gives a pod by its UID, nil if it is not known.
func (r Recording) Judge(podOf func(uid string) *corev1.Pod) *Survey {
	s := &Survey{Namespace: r.Namespace, Coverage: r.Coverage}
	for _, of := range r.Volumes {
		s.Volumes = append(s.Volumes, of.health(podOf(of.Evidence.Pod.UID)))
	}
	return s
}

// health is that of one volume and its copies.
func (r Recorded) health(pod *corev1.Pod) *Health {
	e := r.Evidence
	e.spec = specOf(pod, e.Volume)
	if at := r.Location; e.Staging != nil && at != nil {
		staging := *e.Staging
		staging.location = stagedLocation{
			known: at.Known, reason: at.Reason, below: at.Below, onNodeDisk: at.OnNodeDisk, disk: device{at.Major, at.Minor}, covered: at.Covered,
		}
		e.Staging = &staging
	}
	v := &Health{
		Evidence: e, Verdict: Judge(e), ForeignCopies: r.ForeignCopies, SharedWith: r.SharedWith, SharedWithCount: r.SharedWithCount,
		DaemonNotes: r.DaemonNotes, Daemon: r.Daemon,
	}
	v.Source, v.NoSourceReason = findSource(&v.Evidence, v.Verdict)
	v.WrittenToNodeDisk = r.WrittenToNodeDisk
	for _, of := range r.Copies {
		c := Copy{
			Mount: of.Mount, Holder: of.Holder, SubPath: of.SubPath, Answer: of.Answer, Decision: of.Decision, Source: of.Source,
			volume: v, origin: copyOrigin{onHost: of.OnHost},
		}
		if c.Verdict = judgeCopy(c.evidence()); c.Code != "" {
			v.Copies = append(v.Copies, &c)
		}
	}
	return v
}

// specOf is what the spec of a pod says about a volume.
func specOf(pod *corev1.Pod, v Volume) podSpec {
	spec := podSpec{pod: pod}
	if pod == nil || v.Plugin != HostPathPlugin {
		return spec
	}
	for _, of := range pod.Spec.Volumes {
		if of.Name == v.Name {
			spec.hostPath = of.HostPath
		}
	}
	return spec
}
