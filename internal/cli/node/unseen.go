// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"strconv"

	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// refused counts the processes that may not be looked into, or do not answer, and so may hide a mount namespace.
// surveyed is how many a survey could not look into. A survey cannot distinguish them from those that have ended while
// they were looked at, as the kernel may refuse both in the same way. Only a process that is still there and refuses
// again counts. Process 1 does not count for a caller with every privilege: a sandbox may hide it even from that
// caller, who can do no more about it. It hides little, as its mount table may be read all the same.
func refused(surveyed int) (n int) {
	anywhere := sys.LooksAnywhere()
	if surveyed == 0 && anywhere {
		return 0
	}
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return surveyed
	}
	if anywhere {
		pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == 1 })
	}
	return len(refusals(refusals(pids)))
}

// refusals are those of the processes that do not say which mount namespace they are in.
func refusals(pids []int) (some []int) {
	procfs.Each(pids, func(pid int, _ func()) (string, error) {
		return sys.ReadlinkProc(strconv.Itoa(pid) + "/ns/mnt")
	}, func(pid int, _ string, err error) {
		if denied(err) {
			some = append(some, pid)
		}
	})
	return some
}

func denied(err error) bool {
	return errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM) || errors.Is(err, procfs.ErrSilent)
}

// bindUntried reports whether a path that answers could not be bound in a trial, though the kernel can do that (5.2).
func bindUntried(a asking.Answer) bool {
	return a.State == asking.Alive && a.Bindable == asking.Unknown && !errors.Is(sys.HasMountTrees.Probe(), errors.ErrUnsupported)
}
