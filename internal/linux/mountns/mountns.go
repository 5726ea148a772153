// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package mountns knows the mount namespaces of the machine: the namespace of a process, the mounts in it, and a way to
// run a function inside.
//
// It keeps nothing open. An open namespace or mountinfo descriptor pins the
// namespace, its mounts and their devices, and would cause the very fault that
// this program looks for; so a Namespace is a plain value, opened and compared
// again for every use. A Lister alone may hold one, of a namespace that lives on
// without that.
//
// It changes nothing in any namespace. It rests on mount_namespaces(7),
// setns(2), and ioctl_nsfs(2).
package mountns

import (
	"errors"
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrChanged is returned where a process is no longer in the mount namespace
// that a Namespace names: it moved on, or its number was given to another.
var ErrChanged = errors.New("process is in another mount namespace")

// Namespace names a mount namespace and, where one is known, a process in it.
// It holds no descriptor and does not keep the namespace alive.
type Namespace struct {
	// PID is a process or thread that was in the namespace; 0 is none.
	PID int
	// Inode is N in "mnt:[N]". It is used again once the namespace is gone.
	Inode uint64
	// ID is the kernel's number for it, never used again while the machine
	// runs; 0 on kernels before 6.12.
	ID uint64
	// UserNamespace is the inode number of the user namespace that owns it, and whose root may change its mounts; 0 if
	// that was not read (Owned). Otherwise the namespace is entered only if it has that owner still.
	UserNamespace uint64

	// Link and Name are where else it was seen: a link below /proc that leads to
	// it, and a file that it is bound to, as process Via sees it. Empty: nowhere.
	Link, Name string
	Via        int
}

// String is the namespace as /proc/PID/ns/mnt shows it, or whose it is where that
// may not be read.
func (n Namespace) String() string {
	if n.Inode == 0 && n.PID != 0 {
		return "of process " + strconv.Itoa(n.PID)
	}
	return "mnt:[" + strconv.FormatUint(n.Inode, 10) + "]"
}

// Same reports whether both name one namespace, as far as both know it. The
// processes may differ.
func (n Namespace) Same(other Namespace) bool {
	return n.Inode == other.Inode && (n.ID == other.ID || n.ID == 0 || other.ID == 0)
}

// Of returns the mount namespace of the process or thread pid. It needs the right to
// trace that process (EACCES without); ENOENT or ESRCH when there is none,
// procfs.ErrSilent when it does not answer.
func Of(pid int) (Namespace, error) {
	ns, err := procfs.Ask(pid, func() (Namespace, error) {
		fd, ns, err := openLink(strconv.Itoa(pid) + "/ns/mnt")
		fd.Close()
		return ns, err
	})
	if err != nil {
		return Namespace{}, fmt.Errorf("read mount namespace of process %d: %w", pid, err)
	}
	ns.PID = pid
	return ns, nil
}

// IsOwn reports whether this process or process 1 is in the namespace. In all others, their makers decide where a path
// leads.
func (n Namespace) IsOwn() bool {
	own, err := sys.OwnPID()
	if err != nil {
		return false
	}
	for _, pid := range []int{own, 1} {
		if ns, err := Of(pid); err == nil && n.Same(ns) {
			return true
		}
	}
	return false
}

// Self is the mount namespace of the calling thread: inside Do, the namespace that was entered. Its PID is 0.
func Self() (Namespace, error) {
	fd, ns, err := openLink(sys.ThreadProc("ns/mnt"))
	if err != nil {
		return Namespace{}, fmt.Errorf("read own mount namespace: %w", err)
	}
	fd.Close()
	return ns, nil
}

// Read returns the text of /proc/PID/mountinfo, read into buf[:0], which grows as
// needed; pid 0 is the calling thread. It needs no right to trace the process,
// so it serves for PID 1. Mounts outside the process' root are not in it.
func Read(pid int, buf []byte) ([]byte, error) {
	noteRead(pid)
	text, err := sys.ReadProc(tablePath(pid), buf)
	if err != nil {
		return nil, fmt.Errorf("read mountinfo of %s: %w", describeProcess(pid), err)
	}
	return text, nil
}

// tablePath is the mount table of a process below /proc; 0 is the calling thread.
func tablePath(pid int) string {
	if pid == 0 {
		return sys.ThreadProc("mountinfo")
	}
	return strconv.Itoa(pid) + "/mountinfo"
}

// Table is Read, parsed.
func Table(pid int) (*mountinfo.Table, error) {
	mounts, err := readMounts(pid)
	if err != nil {
		return nil, err
	}
	return mountinfo.NewTable(mounts), nil
}

func readMounts(pid int) ([]mountinfo.Mount, error) {
	text, err := Read(pid, nil)
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.ParseBytes(text)
	if err != nil {
		return nil, fmt.Errorf("read mountinfo of %s: %w", describeProcess(pid), err)
	}
	return mounts, nil
}

// describeProcess is a process in words; 0 is this one.
func describeProcess(pid int) string {
	if pid == 0 {
		return "this process"
	}
	return "process " + strconv.Itoa(pid)
}

// Key distinguishes mount namespaces in a map: it is the number, or a process in the namespace if the number may not be
// read.
type Key struct {
	inode uint64
	pid   int
}

// Key is the key of the namespace.
func (n Namespace) Key() Key {
	if n.Inode != 0 {
		return Key{inode: n.Inode}
	}
	return Key{pid: n.PID}
}

// UniqueIDs returns the number that is never used again of each mount of the calling thread's namespace, by its number in
// mountinfo. Before Linux 6.8 there are no such numbers, and the result is empty.
func UniqueIDs() (map[int]uint64, error) {
	if missing := sys.HasStatmount.Probe(); missing != nil {
		return nil, nil //nolint:nilerr // then the kernel has no such numbers
	}
	noteRead(0)
	ids, err := sys.ListAllMounts(nil, 0)
	if err != nil {
		return nil, err
	}
	var stat sys.MountStat
	numbers := make(map[int]uint64, len(ids))
	for _, id := range ids {
		err := stat.Load(sys.MountRef{Mount: id}, sys.StatmountBasic)
		if err != nil && !errors.Is(err, sys.ENOENT) {
			return nil, err
		}
		if err == nil {
			numbers[stat.ReusedID()] = id
		}
	}
	return numbers, nil
}
