// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"fmt"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Do runs fn inside the namespace and gives back its error.
//
// Where the caller is in that namespace already, fn is simply called: an
// unprivileged process may do that. Otherwise fn runs on an operating system
// thread of its own that has entered the namespace and ends with fn. There, fn
// sees the namespace's own root as "/", also when PID is chrooted; processes it
// starts are born in the namespace; goroutines it starts are not in it. The
// path /proc is the namespace's there, and may be forged: packages mountns and
// mount go through the process' own.
//
// ErrChanged: PID is in another namespace by now. ENOENT or ESRCH: PID is gone,
// and the namespace is not found elsewhere.
// EPERM: entering needs CAP_SYS_ADMIN in the namespace's user namespace, and
// CAP_SYS_CHROOT and CAP_SYS_ADMIN in the caller's. In all three fn has not
// been called.
func (n Namespace) Do(fn func() error) error {
	self, err := Self()
	if err != nil {
		return err
	}
	if n.Same(self) {
		return fn()
	}
	return sys.OnThread(func() error {
		leave, err := n.enter()
		if err != nil {
			return fmt.Errorf("enter mount namespace %s of process %d: %w", n, n.PID, err)
		}
		defer leave()
		return fn()
	})
}

// enter moves the calling thread into the namespace, after making sure that it
// is the one meant. Its descriptor is closed before anything runs inside. leave
// takes the thread back: it ends only some time after the call, and would keep
// the namespace alive until then.
func (n Namespace) enter() (leave func(), err error) {
	home, err := sys.OpenProc(sys.ThreadProc("ns/mnt"))
	if err != nil {
		return nil, err
	}
	fd, err := n.findOpen()
	if err == nil {
		defer fd.Close()
		err = fd.EnterMountNamespace()
	}
	if err != nil {
		home.Close()
		return nil, err
	}
	return func() {
		_ = home.EnterMountNamespace() // else the thread leaves when it ends
		home.Close()
	}, nil
}
