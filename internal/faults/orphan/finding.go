// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"fmt"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/mountstate"
)

// maxNamed bounds how many things of one kind a sentence names.
const maxNamed = 10

// Findings are the directories that are proven to be orphaned, one fault each.
func (s *Survey) Findings() []fault.Finding {
	var all []fault.Finding
	for _, p := range s.Pods {
		if p.Orphaned {
			all = append(all, p.Finding())
		}
	}
	return all
}

// Summary is the survey as all looks give it. A directory of which all is proven but one thing, or but the answers of
// sources that are not there, is unknown: it has volumes and may belong to no pod.
func (s *Survey) Summary() mountstate.Survey {
	sum := mountstate.Survey{Findings: s.Findings(), Evidence: func() any { return s.Evidence() }}
	if sum.Coverage.Namespaces = s.Coverage; s.Coverage != nil {
		sum.Unknown.AddSkipped(s.Coverage.Skipped...)
	}
	sum.Unknown.AddSkipped(s.Skipped...)
	for _, p := range s.Pods {
		if p.Orphaned {
			sum.Over = append(sum.Over, p.UID)
		}
		if !p.Orphaned && len(p.Unproven) <= max(1, len(s.UnavailableSources)) && (len(p.Volumes) > 0 || p.SubPaths) {
			sum.Unknown.AddPlace(mountstate.Place{
				Pod: fault.Pod{UID: p.UID}, Point: p.Path, Reason: "it has volumes and may belong to no pod: " + strings.Join(p.Unproven, "; "),
			})
		}
	}
	return sum
}

// Finding returns the directory as a fault.
func (p *Pod) Finding() fault.Finding {
	finding := fault.Finding{
		Code: fault.OrphanedPodVolumes,
		Pod:  fault.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Evidence: []string{
			fmt.Sprintf("the kubelet has the directory %q, and neither the API server nor the container runtime knows a pod of that UID", p.Path),
			"nothing in it has changed since " + p.Changed.Format(time.RFC3339),
			p.contentText(),
		},
	}
	finding.Details.Path, finding.Details.Place = p.Path, fault.PlacePodDirectory
	if len(p.Refusals) == 0 {
		finding.Details.Repair = fault.RemoveDirectory
	} else {
		text := p.Refusals[0]
		if more := len(p.Refusals) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more reasons)", more)
		}
		finding.Details.Refusal = fault.Refuse(p.reason, text)
	}
	if len(p.Volumes) == 1 {
		_, finding.Volume, _ = strings.Cut(p.Volumes[0], "/")
	}
	for _, why := range p.Refusals {
		finding.Evidence = append(finding.Evidence, "nothing of it is removed: "+why)
	}
	return finding
}

// contentText says what is left of volumes.
func (p *Pod) contentText() string {
	var parts []string
	if len(p.Volumes) > 0 {
		text := "volumes are left: " + strings.Join(p.Volumes[:min(len(p.Volumes), maxNamed)], ", ")
		if more := len(p.Volumes) - maxNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, text)
	}
	if p.SubPaths {
		parts = append(parts, "the directory of its subPaths is left")
	}
	if len(parts) == 0 {
		return "no volume is left in it, and the kubelet has not removed it all the same"
	}
	return strings.Join(parts, "; ")
}

// NoneReason says why there is nothing to remove, or nothing wrong: of the pod with the UID only, or of all where that
// is empty.
func (s *Survey) NoneReason(only string) string {
	var said []string
	for _, p := range s.Pods {
		if only != "" && p.UID != only || len(p.Actions) > 0 {
			continue
		}
		said = append(said, p.RefusalReason())
	}
	if len(said) == 0 {
		if only != "" {
			return fmt.Sprintf("pod UID %q has no orphaned directory", only)
		}
		text := fmt.Sprintf("each of the %d pod directories belongs to a known pod", s.Directories)
		if len(s.UnavailableSources) > 0 {
			text += ", as far as that is known: " + strings.Join(s.UnavailableSources, "; ")
		}
		if len(s.Skipped) > 0 {
			text += "; not looked at: " + strings.Join(s.Skipped, "; ")
		}
		return text
	}
	return strings.Join(fault.Most(said, maxNamed, "And %d more"), ". ")
}

// RefusalReason says why nothing of the directory is removed.
func (p *Pod) RefusalReason() string {
	if !p.Orphaned {
		return fmt.Sprintf("whether the directory of the pod with UID %q is orphaned is not proven: %s", p.UID, strings.Join(p.Unproven, "; "))
	}
	return fmt.Sprintf("the orphaned directory of the pod with UID %q is left alone: %s", p.UID, strings.Join(p.Refusals, "; "))
}
