// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Do runs fn inside the namespace and gives back its error.
//
// If the caller is in that namespace already, fn is simply called: an
// unprivileged process may do that. Otherwise fn runs on an operating system
// thread of its own that has entered the namespace and ends with fn. There, fn
// sees the namespace's own root as "/", also when PID is chrooted; processes it
// starts are born in the namespace; goroutines it starts are not in it. The
// path /proc is the namespace's there, and may be forged: packages mountns and
// mount go through the process' own.
//
// ErrChanged: PID is in another namespace by now, or its owner is not UserNamespace. ENOENT or ESRCH: PID is gone, and
// the namespace is not found elsewhere. EPERM: entering needs CAP_SYS_ADMIN in the namespace's user namespace, and
// CAP_SYS_CHROOT and CAP_SYS_ADMIN in the caller's. procfs.ErrSilent: PID does not answer. After each of them, fn has
// not been called.
func (n Namespace) Do(fn func() error) error {
	self, err := Self()
	if err != nil {
		return err
	}
	if n.Same(self) {
		return fn()
	}
	fd, err := n.openUnlessHung()
	if err != nil {
		return n.notEntered(err)
	}
	return sys.OnThread(func() error {
		leave, err := n.enterOpened(fd)
		if err != nil {
			return n.notEntered(err)
		}
		defer func() { _ = leave() }() // else the thread leaves when it ends
		return fn()
	})
}

func (n Namespace) notEntered(err error) error {
	if n.Inode == 0 || n.PID == 0 {
		return fmt.Errorf("enter mount namespace %s: %w", n, err)
	}
	return fmt.Errorf("enter mount namespace %s of process %d: %w", n, n.PID, err)
}

// openUnlessHung opens the namespace, and gives up on a process that does not answer. It
// asks no process if the kernel knows the namespace otherwise.
func (n Namespace) openUnlessHung() (sys.NamespaceFD, error) {
	pid := n.PID // the process or thread by which the namespace is opened
	if pid == 0 {
		number, _, _ := strings.Cut(n.Link, "/")
		var err error
		if pid, err = strconv.Atoi(number); err != nil {
			pid = n.Via
		}
	}
	fd, err := procfs.Open(pid, func() (*sys.FD, error) {
		found, err := n.findOpen()
		return found.FD, err
	})
	if errors.Is(err, procfs.ErrSilent) {
		if found := n.searchOpen(); found.FD != nil {
			return found, nil
		}
	}
	return sys.NamespaceFD{FD: fd}, err
}

// maxTableBytes bounds the text of Namespace.Table: some 30,000 mounts at paths of
// ordinary length.
const maxTableBytes = 8 << 20

// Table is the mount table of the namespace, as it is seen from its root. It has the errors of Do and of the function
// Table. A table of more than 8 MiB, which any user can make, is sys.ErrTooLarge.
func (n Namespace) Table() (t *mountinfo.Table, err error) {
	err = n.Do(func() error {
		noteReadOf(n)
		text, err := sys.ReadProcUpTo(tablePath(0), nil, maxTableBytes)
		if err != nil {
			return fmt.Errorf("read mountinfo of mount namespace %s: %w", n, err)
		}
		mounts, err := mountinfo.ParseBytes(text)
		t = mountinfo.NewTable(mounts)
		return err
	})
	return t, err
}

// Enter is for callers that have a thread already, from sys.OnThread or sys.WithOwnFDTable; all others call Do, whose
// errors it has. It moves the calling thread into the namespace, after it has verified the namespace. Its descriptor is
// closed before anything runs inside. leave takes the thread back, and is to be called once: a thread ends only some
// time after its function, and would keep the namespace alive until then.
func (n Namespace) Enter() (leave func() error, err error) {
	fd, err := n.findOpen()
	if err != nil {
		return nil, err
	}
	return n.enterOpened(fd)
}

// enterOpened also closes fd.
func (n Namespace) enterOpened(fd sys.NamespaceFD) (leave func() error, err error) {
	defer fd.Close()
	home, err := sys.OpenNamespace(sys.ThreadProc("ns/mnt"))
	if err != nil {
		return nil, err
	}
	if n.UserNamespace != 0 { // else it is not known; numbers of namespaces are used again
		var owner uint64
		owner, err = fd.OwnerUserNamespace()
		if err == nil && owner != n.UserNamespace {
			err = fmt.Errorf("user namespace %d owns it, and not %d: %w", owner, n.UserNamespace, ErrChanged)
		}
	}
	if err == nil {
		err = fd.EnterMountNamespace()
	}
	if err != nil {
		home.Close()
		return nil, err
	}
	return func() error {
		defer home.Close()
		return home.EnterMountNamespace()
	}, nil
}
