// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/searches"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/render"
)

// asRootRemedy is the advice after an incomplete look.
const asRootRemedy = searches.AsRoot

// addGaps adds lines to a report.
func addGaps(p *render.Page, gaps []mountstate.Gap) {
	for _, g := range gaps {
		p.Line(0, "Not looked at: %s.", g)
	}
}

// gapLines name the gaps, the places that could not be judged, and the assumptions behind the result.
func (v scanView) gapLines() (lines []string) {
	l := &v.report.Looked
	for _, u := range l.Unproven {
		lines = append(lines, "Not judged: "+u.String())
	}
	if n := len(lines); n > maxGaps && !v.verbose {
		lines = append(lines[:maxGaps], fmt.Sprintf("Not judged: %d more places: %s", n-maxGaps, v.program.commandLine("kubediag scan"+v.flags+" -v")))
	}
	if slices.ContainsFunc(v.report.Faults, func(f scanFault) bool { return f.Pod.Name == "" && f.Pod.UID != "" }) {
		for _, e := range l.PodNames.Errors {
			lines = append(lines, "Names of pods are missing: "+e)
		}
	}
	for _, g := range l.Gaps.NotLookedAt {
		lines = append(lines, "Not looked at: "+g.String()+".")
	}
	if n := l.RenewedByKubelet; n > 0 && (v.report.hasFaults() || v.verbose) {
		lines = append(lines, verb.Count(n, "stale bind")+" left out, which this kubelet renews by itself.")
	}
	if l.KubeletRenews == replacesUnknown && slices.ContainsFunc(v.report.Faults, func(f scanFault) bool {
		entry := fault.Known().Entry(f.Code)
		return entry.Family == fault.FamilyBind && entry.Breaks == fault.BreaksMount
	}) {
		lines = append(lines, "Unknown whether this kubelet renews stale binds (kubelets from 1.19 do).")
	}
	if v.report.lacksSpecs() {
		text := "Without the specs of pods (--pods), a source that is missing or was moved away is not seen, nor a hostPath on a disk that fails, or one that no container has yet"
		if v.from == "" {
			text += ": " + getPods + v.program.commandLine("kubediag scan"+v.flags+" --pods=pods.json")
		}
		lines = append(lines, text)
	}
	for _, note := range l.Notes {
		lines = append(lines, "Note: "+note+".")
	}
	return lines
}

// errUnseen is the error of a verb that could not look at everything. By then the verb has written its findings and its
// gaps.
var errUnseen = errors.New("not everything was looked at, so there may be faults that were not seen")

// errUnjudged is how a verb ends that has found a place and does not know its state.
var errUnjudged = errors.New("not everything could be judged, so there may be faults that were not seen")

// unseenError is errUnseen with the first remedy of the gaps; nil if there are no gaps.
func unseenError(gaps []mountstate.Gap) error {
	if len(gaps) == 0 {
		return nil
	}
	for _, g := range gaps {
		if g.Do != "" {
			return fmt.Errorf("%w: %s", errUnseen, g.Do)
		}
	}
	return fmt.Errorf("%w: %s", errUnseen, gaps[0])
}

// processesHidden reports whether this process lacks the privileges to see the mounts and files of other processes. Then an
// empty result proves nothing, and a finding may be only part of the truth.
var processesHidden = sync.OnceValue(func() bool { return !sys.SeesEverything() })

// hiddenProcessGaps are the gaps of a look at other processes: those that /proc does not show, and those of a pass over mount namespaces.
func hiddenProcessGaps(denied int, pids []int, partial int) (gaps []mountstate.Gap) {
	switch visibility, err := sys.ProcVisibility(); {
	case err != nil:
		gaps = append(gaps, mountstate.Gap{What: "other processes, and what they have mounted", Why: err.Error(), Do: asRootRemedy})
	case visibility == sys.SeesNamespace:
		gaps = append(gaps, mountstate.Gap{What: "processes outside of this PID namespace, and what they have mounted", Why: "/proc does not show them",
			Do: asRootRemedy})
	case visibility == sys.SeesOwn:
		gaps = append(gaps, mountstate.Gap{What: "the processes of others, and what they have mounted", Why: "/proc does not show them (hidepid)", Do: asRootRemedy})
	}
	if denied == 0 && len(gaps) == 0 && !sys.LooksAnywhere() {
		gaps = append(gaps, mountstate.Gap{What: "other processes, and what they have mounted", Why: searches.WhyDenied(), Do: asRootRemedy})
	}
	return append(gaps, searches.Unread(denied, pids, partial)...)
}

// bindUntried reports whether a path that answers could not be bound in a trial, though the kernel can do that (5.2).
func bindUntried(a asking.Answer) bool {
	return a.State == asking.Alive && a.Bindable == asking.Unknown && !errors.Is(sys.HasMountTrees.Probe(), errors.ErrUnsupported)
}
