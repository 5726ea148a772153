// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"strconv"

	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/sys"
)

// asRoot is what to do where it could not be looked everywhere.
const asRoot = "run it as root in the host's PID namespace"

// errUnseen is how a verb ends that has found no fault, and could not look at everything. What it has seen, and what not,
// has been written by then.
var errUnseen = errors.New("not everything could be looked at, so that there may be faults which were not seen: " + asRoot)

// refused counts the processes that may not be looked into and so may hide a mount namespace, where a survey was refused
// so many. A survey cannot tell them from those that have ended while they were looked at, as for both the kernel may
// answer that it is not permitted: only a process that is still there and refuses again counts. Process 1 does not count
// for root: a sandbox may keep it even from a caller who has every privilege, who can do no more about it. It hides
// little, as its mount table may be read all the same. Where /proc does not even show it, it hides the processes of others
// altogether (hidepid), and stands for them.
func refused(surveyed int) (n int) {
	if err := askProcess(1); errors.Is(err, sys.ENOENT) {
		return max(surveyed, 1)
	}
	if surveyed == 0 {
		return 0
	}
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return surveyed
	}
	for _, pid := range pids {
		if (pid != 1 || os.Geteuid() != 0) && denied(askProcess(pid)) && denied(askProcess(pid)) {
			n++
		}
	}
	return n
}

// askProcess asks for the mount namespace of a process.
func askProcess(pid int) error {
	_, err := sys.ReadlinkProc(strconv.Itoa(pid) + "/ns/mnt")
	return err
}

func denied(err error) bool { return errors.Is(err, sys.EACCES) || errors.Is(err, sys.EPERM) }

// gaps says what could not be looked at.
func gaps(denied, partial int) (list []string) {
	if denied > 0 {
		list = append(list, processes(denied)+" that may not be looked into")
	}
	if partial > 0 {
		list = append(list, "parts of "+count(partial, "mount namespace"))
	}
	return list
}

// bindUntried tells whether what answers could not be bound in a trial, though the kernel can do that (5.2).
func bindUntried(a asking.Answer) bool {
	return a.State == asking.Alive && a.Bindable == asking.Unknown && !errors.Is(sys.HasMountTrees.Probe(), errors.ErrUnsupported)
}
