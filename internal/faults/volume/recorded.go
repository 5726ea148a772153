// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// Recording is what the node has answered to an inspection, so that it can be written down and judged again elsewhere.
type Recording struct {
	Namespace uint64           `json:"namespace"`
	Coverage  recordedCoverage `json:"coverage"`
	// Volumes are those that were asked, healthy ones included.
	Volumes []RecordedVolume `json:"volumes"`
}

// recordedCoverage is the extent of the inspection.
type recordedCoverage struct {
	mountstate.Coverage

	Unjudged   []mountstate.Place `json:",omitempty"`
	Incomplete []mountstate.Gap   `json:",omitempty"`
}

// RecordedVolume is what the node has answered about one volume.
type RecordedVolume struct {
	Evidence Evidence  `json:"evidence"`
	Location *Location `json:"location,omitempty"`
	// WrittenToNodeDisk is that of Replacement.
	WrittenToNodeDisk []string       `json:"writtenToNodeDisk,omitempty"`
	Copies            []RecordedCopy `json:"copies,omitempty"`
	Surroundings
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
	recording := Recording{Namespace: s.Namespace, Coverage: recordedCoverage{s.Coverage, s.Unknown.Places, s.Unknown.Gaps}, Volumes: []RecordedVolume{}}
	for _, health := range s.Volumes {
		of := RecordedVolume{Evidence: health.Evidence, WrittenToNodeDisk: health.Replacement.WrittenToNodeDisk, Surroundings: health.Surroundings}
		if health.Evidence.Staging != nil {
			of.Location = &health.Evidence.Staging.location
		}
		for _, c := range health.Copies {
			of.Copies = append(of.Copies, RecordedCopy{c.Mount, c.Holder, c.SubPath, c.Answer, c.Decision, c.Source, c.origin.onHost})
		}
		recording.Volumes = append(recording.Volumes, of)
	}
	return recording
}

// Judge makes the survey again from what was written down. podOf gives a pod by its UID, nil if it is not known.
func (r Recording) Judge(podOf func(uid string) *corev1.Pod) *Survey {
	s := &Survey{Namespace: r.Namespace, Coverage: r.Coverage.Coverage, Unknown: mountstate.Unknown{Gaps: r.Coverage.Incomplete}}
	for _, of := range r.Volumes {
		s.Volumes = append(s.Volumes, of.healthOf(podOf(of.Evidence.Pod.UID)))
	}
	judged := map[string]bool{} // the places of volumes, by pod and path
	for _, v := range s.Volumes {
		judged[v.Evidence.Pod.UID+v.Evidence.Point] = true
	}
	for _, p := range r.Coverage.Unjudged {
		if p.Namespace != "" || !judged[p.Pod.UID+p.Point] { // the others were judged again
			s.Unknown.AddPlace(p)
		}
	}
	addUnknownVolumes(&s.Unknown, s.Volumes)
	return s
}

// healthOf is that of one volume and its copies.
func (r RecordedVolume) healthOf(pod *corev1.Pod) *Health {
	evidence := r.Evidence
	evidence.spec = podSpec{pod: pod}
	switch {
	case evidence.Plugin != HostPathPlugin:
		if evidence.Link != "" {
			evidence.spec.hostPath = linkedPath(evidence.Point)
		}
	case pod != nil:
		for _, spec := range pod.Spec.Volumes {
			if spec.Name == evidence.Name {
				evidence.spec.hostPath = spec.HostPath
			}
		}
	}
	if at := r.Location; evidence.Staging != nil && at != nil {
		staging := *evidence.Staging
		staging.location = *at
		evidence.Staging = &staging
	}
	health := &Health{Evidence: evidence, Verdict: Judge(evidence), Surroundings: r.Surroundings}
	health.Replacement.Source, health.Replacement.NoSourceReason = findSource(&health.Evidence, health.Verdict)
	health.Replacement.WrittenToNodeDisk = r.WrittenToNodeDisk
	for _, of := range r.Copies {
		c := Copy{
			Mount: of.Mount, Holder: of.Holder, SubPath: of.SubPath, Answer: of.Answer, Decision: of.Decision, Source: of.Source,
			volume: health, origin: copyOrigin{onHost: of.OnHost},
		}
		if c.Verdict = judgeCopy(c.judgeEvidence()); c.Verdict.Code != "" {
			health.Copies = append(health.Copies, &c)
		}
	}
	return health
}

// MountNamespaces are the numbers of the mount namespaces with a copy, each with a process in it; 0: none is known.
func (r Recording) MountNamespaces() map[uint64]int {
	all := map[uint64]int{}
	for _, v := range r.Volumes {
		for _, c := range v.Copies {
			all[c.Mount.Namespace.Inode] = max(all[c.Mount.Namespace.Inode], c.Mount.Namespace.PID)
		}
	}
	return all
}
