// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package searches

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// AsRoot is the advice after a look that lacked privileges.
const AsRoot = "run it as root in the host's PID namespace (in a pod: hostPID: true)"

// Unread are the gaps of a pass over the mount namespaces of the machine. denied counts the processes that could not be read, pids are
// those of them whose ids are known, and partial counts the mount namespaces that were read in part.
func Unread(denied int, pids []int, partial int) (gaps []mountstate.Gap) {
	remedy, processRemedy := AsRoot, AsRoot
	if sys.LooksAnywhere() {
		remedy, processRemedy = "", "" // every privilege is there
		if len(pids) > 0 {
			processRemedy = "see what these processes wait for: " + fault.ShowProcesses(pids[:min(len(pids), maxShownProcesses)]...)
		}
	}
	if denied > 0 {
		gaps = append(gaps, mountstate.Gap{
			What: count(denied, "process", "processes") + ", and what only they have mounted", Subject: "processes, and what only they have mounted",
			Why: WhyDenied(), Do: processRemedy,
		})
	}
	if partial > 0 {
		gaps = append(gaps, mountstate.Gap{
			What: "parts of " + count(partial, "mount namespace", "mount namespaces"), Subject: "parts of mount namespaces",
			Why: "they could not be read", Do: remedy,
		})
	}
	return gaps
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// maxShownProcesses is how many processes a command names that shows why they do not answer. Others are like them.
const maxShownProcesses = 8

// WhyDenied says why this process cannot read others.
func WhyDenied() string {
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

// Refusing counts the processes that cannot be read, or do not answer, and so may hide a mount namespace, and returns
// those that are known. surveyed is how many a survey could not look into, and known their numbers, as far as they are
// known. A survey cannot distinguish them from those that have ended meanwhile, as the kernel may refuse both in the same
// way. Only a process that is still there and refuses again counts. Process 1 does not count for a caller with every
// privilege: a sandbox may hide it even from that caller, who can do no more about it. It hides little, as its mount table
// may be read all the same.
func Refusing(surveyed int, known ...int) (count int, pids []int) {
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

// HidingMounts is Refusing without the processes that are in the mount namespace of a process that answers: they have no mounts of their own.
func HidingMounts(surveyed int, known ...int) (count int, pids []int) {
	count, pids = Refusing(surveyed, known...)
	if len(pids) == 0 || !sys.LooksAnywhere() {
		return count, pids
	}
	pids = slices.DeleteFunc(pids, sharesMountsOfParent)
	return len(pids), pids
}

// sharesMountsOfParent reports whether the mount table of a process begins with the same mount as that of its parent, and the parent says which
// namespace it is in: no two namespaces share a mount. The kernel shows the files without the lock that keeps the process from an answer.
func sharesMountsOfParent(pid int) bool {
	text, err := sys.ReadProcStatus(strconv.Itoa(pid), "PPid")
	parent, notNumber := strconv.Atoi(text)
	if err != nil || notNumber != nil {
		return false
	}
	first := firstMount(pid)
	return first != "" && first == firstMount(parent) && len(refusals([]int{parent})) == 0
}

// firstMount is the number of the first mount that a process sees; empty if it shows none.
func firstMount(pid int) string {
	table, _ := sys.ReadProcHead(strconv.Itoa(pid)+"/mountinfo", nil)
	number, _, _ := strings.Cut(string(table), " ")
	return number
}

// refusals are those of the processes that do not say which mount namespace they are in.
func refusals(pids []int) (some []int) {
	procfs.Each(pids, func(pid int, _ func()) (string, error) {
		return sys.ReadlinkProc(strconv.Itoa(pid) + "/ns/mnt")
	}, func(pid int, _ string, err error) {
		if IsDenied(err) {
			some = append(some, pid)
		}
	})
	return some
}

// IsDenied reports whether err is that a process may not be looked into, or does not answer.
func IsDenied(err error) bool {
	return errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM) || errors.Is(err, procfs.ErrSilent)
}
