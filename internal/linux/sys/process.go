// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ProcAttr is the type of exec.Cmd.SysProcAttr and os.ProcAttr.Sys.
type ProcAttr = syscall.SysProcAttr

// Clone is the namespaces that a child process gets for itself in addition to the mount namespace.
type Clone struct {
	// User gives the child a user namespace in which the caller's user is
	// root, so that it needs no privilege outside.
	User bool
	// Processes gives it a PID namespace, whose process 1 it is. /proc shows that
	// once the child has mounted it again.
	Processes bool
}

// PrivateMounts is for exec.Cmd.SysProcAttr: the child starts in a copy of the
// caller's mount namespace. With User false the copy still shares with the
// original, as the kernel copies it; the child calls
// SetPropagation("/", Private, true) before it mounts anything.
func PrivateMounts(o Clone) *ProcAttr {
	attr := &ProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if o.User {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if o.Processes {
		attr.Cloneflags |= unix.CLONE_NEWPID
	}
	return attr
}

// OwnProcessGroup is for exec.Cmd.SysProcAttr: the child leads a process group
// of its own, which KillGroup ends with everything the child started.
func OwnProcessGroup() *ProcAttr {
	return &ProcAttr{Setpgid: true}
}

// KillGroup sends SIGKILL to every process of the group that pid leads. A
// group that is gone already is no error.
func KillGroup(pid int) error {
	if pid <= 1 {
		// 0 is the caller's own group, 1 and -1 everybody.
		return unix.EINVAL
	}
	if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
