// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/render"
)

// asRootRemedy is the advice after an incomplete look.
const asRootRemedy = "run it as root in the host's PID namespace (in a pod: hostPID: true)"

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
		for _, e := range l.NameErrors {
			lines = append(lines, "Names of pods are missing: "+e)
		}
	}
	for _, g := range l.NotLookedAt {
		lines = append(lines, "Not looked at: "+g.String()+".")
	}
	if n := l.RenewedByKubelet; n > 0 && (v.report.hasFaults() || v.verbose) {
		lines = append(lines, verb.Count(n, "stale bind")+" left out, which this kubelet renews by itself.")
	}
	if l.KubeletRenews == replacesUnknown && slices.ContainsFunc(v.report.Faults, isBrokenBind) {
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

// hiddenProcessGaps are the gaps of a look at other processes. denied counts the processes that could not be read, pids are
// those of them whose ids are known, and partial counts the mount namespaces that were read in part.
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
	anywhere, remedy, processRemedy := sys.LooksAnywhere(), asRootRemedy, asRootRemedy
	if anywhere {
		remedy, processRemedy = "", showProcesses(pids)
	}
	switch {
	case denied > 0:
		gaps = append(gaps, mountstate.Gap{What: countProcesses(denied) + ", and what only they have mounted", Why: deniedReason(), Do: processRemedy})
	case len(gaps) == 0 && !anywhere:
		gaps = append(gaps, mountstate.Gap{What: "other processes, and what they have mounted", Why: deniedReason(), Do: remedy})
	}
	if partial > 0 {
		gaps = append(gaps, mountstate.Gap{What: "parts of " + verb.Count(partial, "mount namespace"), Why: "they could not be read", Do: remedy})
	}
	return gaps
}

// maxShownProcesses is how many processes a command names that shows why they do not answer. Others are like them.
const maxShownProcesses = 8

// showProcesses is the remedy for a caller with every privilege: a command that shows where the processes wait. It is empty
// without processes.
func showProcesses(pids []int) string {
	if len(pids) == 0 {
		return ""
	}
	return "see what these processes wait for: " + fault.ShowProcesses(pids[:min(len(pids), maxShownProcesses)]...)
}

// deniedReason says why processes cannot be read.
func deniedReason() string {
	switch uid := os.Geteuid(); {
	case sys.LooksAnywhere():
		return "the system keeps them even from root, or they do not answer"
	case uid != 0:
		return fmt.Sprintf("user %d may not look into them", uid)
	case !sys.InFirstUserNamespace():
		return "root of a user namespace may not look into them"
	}
	return "it takes CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_CHROOT and CAP_DAC_READ_SEARCH to look into them"
}

// findRefusing counts the processes that cannot be read, or do not answer, and so may hide a mount namespace, and returns
// those that are known. surveyed is how many a survey could not look into, and known their numbers, as far as they are
// known. A survey cannot distinguish them from those that have ended meanwhile, as the kernel may refuse both in the same
// way. Only a process that is still there and refuses again counts. Process 1 does not count for a caller with every
// privilege: a sandbox may hide it even from that caller, who can do no more about it. It hides little, as its mount table
// may be read all the same.
func findRefusing(surveyed int, known ...int) (count int, pids []int) {
	anywhere := sys.LooksAnywhere()
	if surveyed == 0 && anywhere {
		return 0, nil
	}
	pids = slices.Clone(known)
	if !anywhere || len(known) < surveyed {
		all, err := sys.ProcNumbers("")
		if err != nil {
			return surveyed, known
		}
		pids = all
	}
	if anywhere {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == 1 })
	}
	pids = refusals(refusals(pids))
	return len(pids), pids
}

// refusals are those of the processes that do not say which mount namespace they are in.
func refusals(pids []int) (some []int) {
	procfs.Each(pids, func(pid int, _ func()) (string, error) {
		return sys.ReadlinkProc(strconv.Itoa(pid) + "/ns/mnt")
	}, func(pid int, _ string, err error) {
		if isDenied(err) {
			some = append(some, pid)
		}
	})
	return some
}

func isDenied(err error) bool {
	return errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM) || errors.Is(err, procfs.ErrSilent)
}

// bindUntried reports whether a path that answers could not be bound in a trial, though the kernel can do that (5.2).
func bindUntried(a asking.Answer) bool {
	return a.State == asking.Alive && a.Bindable == asking.Unknown && !errors.Is(sys.HasMountTrees.Probe(), errors.ErrUnsupported)
}
