// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Capability is a privilege that the kernel checks by itself: capabilities(7).
type Capability uint

// The capabilities that some process of this module keeps.
const (
	CapDACOverride    Capability = unix.CAP_DAC_OVERRIDE
	CapDACReadSearch  Capability = unix.CAP_DAC_READ_SEARCH
	CapFowner         Capability = unix.CAP_FOWNER
	CapNetBindService Capability = unix.CAP_NET_BIND_SERVICE
	CapSysChroot      Capability = unix.CAP_SYS_CHROOT
	CapSysPtrace      Capability = unix.CAP_SYS_PTRACE
	CapSysAdmin       Capability = unix.CAP_SYS_ADMIN
	CapMknod          Capability = unix.CAP_MKNOD
	CapSyslog         Capability = unix.CAP_SYSLOG
)

// DropPrivileges takes every capability but these from all threads of the process, for good, and sets no_new_privs: a
// program that the process executes has no more than the process keeps. A capability that the process does not have is
// not added. It needs CAP_SETPCAP where there is something to drop. EOPNOTSUPP: the program was built with cgo, and the
// runtime does not know all of its threads.
func DropPrivileges(keep ...Capability) error {
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c
	}
	if err := dropBounding(mask); err != nil {
		return fmt.Errorf("drop from bounding set: %w", err)
	}
	if err := dropProcessSets(mask); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// dropBounding goes through all capabilities that the running kernel knows.
func dropBounding(keep uint64) error {
	for c := uintptr(0); c < 64; c++ {
		has, _, errno := unix.Syscall(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0)
		if errno == unix.EINVAL {
			return nil // there are no more
		}
		if errno != 0 {
			return errno
		}
		if has == 0 || keep&(1<<c) != 0 {
			continue
		}
		if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); err != nil {
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
	return nil
}

// dropProcessSets narrows the effective, permitted and inheritable sets. The ambient set
// never has more than these.
func dropProcessSets(keep uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of the calling thread
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for i := range data {
		mask := uint32(keep >> (32 * i))
		data[i].Effective &= mask
		data[i].Permitted &= mask
		data[i].Inheritable &= mask
	}
	return onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
}

// onAllThreads makes a system call on every thread that the process has. Threads that it starts later inherit the state
// of their maker.
//
//go:uintptrescapes
func onAllThreads(trap, a1, a2, a3 uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
		return errno
	}
	return nil
}
