// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// errStranded: the thread could not go back to its own namespace.
var errStranded = errors.New("thread cannot leave the mount namespace")

// inside runs fn in the question's namespace, on the calling thread, which has
// files of its own, and takes it back at once: a thread that hangs must not
// keep a namespace alive, nor what is mounted there. fn asks no file system.
// mountns.Namespace.Do would take another thread, without those files.
func (q *question) inside(fn func() error) error {
	if q.Own {
		return fn()
	}
	home, err := sys.OpenProc(sys.ThreadProc("ns/mnt"))
	if err != nil {
		return err
	}
	defer home.Close()
	if err := enter(q.Namespace); err != nil {
		return fmt.Errorf("enter mount namespace %s: %w", q.Namespace, err)
	}
	err = fn()
	if back := home.EnterMountNamespace(); back != nil {
		return fmt.Errorf("%w: %w", errStranded, back)
	}
	return err
}

// enter moves the calling thread into a namespace that it finds at its process,
// or among all of the machine.
func enter(ns mountns.Namespace) error {
	err := error(sys.ENOENT)
	if ns.PID != 0 {
		var fd *sys.FD
		if fd, err = sys.OpenProc(strconv.Itoa(ns.PID) + "/ns/mnt"); err == nil {
			defer fd.Close()
			if err = is(fd, ns); err == nil {
				return fd.EnterMountNamespace()
			}
		}
	}
	if ns.ID == 0 || sys.HasNamespaceWalk.Probe() != nil {
		return err
	}
	for _, step := range []func(*sys.FD) (*sys.FD, sys.NamespaceInfo, error){(*sys.FD).PrevNamespace, (*sys.FD).NextNamespace} {
		if err = enterAlong(ns, step); !errors.Is(err, sys.ENOENT) {
			return err
		}
	}
	return err
}

// enterAlong goes from the thread's own namespace to its end of the list of all.
func enterAlong(ns mountns.Namespace, step func(*sys.FD) (*sys.FD, sys.NamespaceInfo, error)) error {
	fd, err := sys.OpenProc(sys.ThreadProc("ns/mnt"))
	for err == nil {
		var (
			next *sys.FD
			info sys.NamespaceInfo
		)
		next, info, err = step(fd)
		fd.Close()
		if fd = next; err == nil && info.ID == ns.ID {
			defer fd.Close()
			return fd.EnterMountNamespace()
		}
	}
	return err
}

// is makes sure that fd is the namespace.
func is(fd *sys.FD, ns mountns.Namespace) error {
	st, err := fd.Stat(sys.StatIno)
	if err != nil {
		return err
	}
	info, err := fd.NamespaceInfo()
	if err != nil && !errors.Is(err, sys.ENOTTY) {
		return err
	}
	if !ns.Same(mountns.Namespace{Inode: st.Ino, ID: info.ID}) {
		return mountns.ErrChanged
	}
	return nil
}
