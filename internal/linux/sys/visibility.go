// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// Visibility is which processes of the machine /proc shows to this process.
type Visibility int

const (
	// SeesAll is a /proc that shows all of them.
	SeesAll Visibility = iota
	// SeesNamespace is a /proc that shows a PID namespace which is not the
	// machine's first: no process outside of it shows.
	SeesNamespace
	// SeesOwn is a /proc that hides the processes of others (hidepid).
	SeesOwn
)

// ProcVisibility finds out which processes the process' own /proc shows. The second
// process of the machine makes the kernel's threads and is one itself, in no
// namespace but the first. A caller that does not see all processes must not
// conclude that one is not there.
func ProcVisibility() (Visibility, error) {
	second, err := ReadProcStat("2")
	switch {
	case errors.Is(err, fs.ErrPermission):
		return SeesOwn, nil
	case errors.Is(err, ENOENT), errors.Is(err, ESRCH):
		// A namespace may have no second process, or /proc may hide it. Each namespace has a first.
		proc, err := Procfs()
		if err != nil {
			return SeesOwn, err
		}
		if _, err := proc.StatAt("1", StatType); err != nil {
			return SeesOwn, nil //nolint:nilerr // it does not show: that is the answer
		}
		return SeesNamespace, nil
	case err != nil:
		return SeesOwn, fmt.Errorf("find out which processes /proc shows: %w", err)
	case second.isKernelThread():
		return SeesAll, nil
	}
	return SeesNamespace, nil
}

// OwnPID is this process' number in its /proc. It is another than getpid's if /proc belongs to a PID namespace above,
// as in a container with the host's.
func OwnPID() (int, error) {
	link, err := ReadlinkProc("self")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(link)
}

// firstUserNamespace is the inode number that the kernel gives to the machine's
// first user namespace.
const firstUserNamespace = 0xEFFFFFFD

// LooksAnywhere reports whether this process may inspect every process and mount namespace of the machine. This takes
// CAP_SYS_PTRACE to trace, CAP_SYS_ADMIN and CAP_SYS_CHROOT to enter, and CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE to
// read, in the first user namespace.
func LooksAnywhere() bool {
	var own [2]unix.CapUserData
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&header, &own[0]); err != nil {
		return false
	}
	has := func(c uint) bool { return own[c/32].Effective&(1<<(c%32)) != 0 }
	for _, c := range []uint{unix.CAP_SYS_PTRACE, unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT} {
		if !has(c) {
			return false
		}
	}
	return (has(unix.CAP_DAC_READ_SEARCH) || has(unix.CAP_DAC_OVERRIDE)) && InFirstUserNamespace()
}

// InFirstUserNamespace reports whether this process is in the user namespace that
// the machine began with, as far as /proc shows: root of another is root of nothing
// outside.
func InFirstUserNamespace() bool {
	link, err := ReadlinkProc("self/ns/user")
	return err != nil || link == fmt.Sprintf("user:[%d]", firstUserNamespace) // without /proc it counts as the first
}

// SeesEverything reports whether this process sees every process of the machine and may inspect it: only then does a
// search without a result prove that there is no process.
func SeesEverything() bool {
	visibility, err := ProcVisibility()
	return err == nil && visibility == SeesAll && LooksAnywhere()
}
