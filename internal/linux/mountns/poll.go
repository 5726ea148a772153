// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"kubediag.org/kubediag/internal/linux/sys"
)

// mountPoll reports whether anything was mounted, unmounted or moved in a mount namespace since its last call, without
// reading the mounts: an open mountinfo can be polled for that, see proc_pid_mountinfo(5). Its zero value holds nothing
// open.
//
// A mountinfo that is open keeps its namespace alive, and the root directory of
// its process. So it is held open of one namespace that lives on anyway: that of
// PID 1, or our own.
type mountPoll struct {
	ns    Namespace // of the last call
	table *sys.FD   // nil if it cannot be polled
}

// mayHaveChanged is false if the kernel reports no change in ns since the last call, which was for ns as well.
func (c *mountPoll) mayHaveChanged(ns Namespace) bool {
	if c.ns.Inode == 0 || !c.ns.Same(ns) {
		c.closeTable()
		c.ns = ns
		for _, pid := range []int{1, os.Getpid()} {
			fd, err := openTableOf(pid, c.ns)
			if err != nil {
				c.closeTable() // another time
				break
			}
			if fd != nil {
				c.table = fd
				break
			}
		}
		return true
	}
	if c.table == nil {
		return true
	}
	urgent, err := c.table.PollPriority()
	return urgent || err != nil
}

// openTableOf opens the mountinfo of a process if that is in ns; nil if it is not, or if its namespace may not be read.
func openTableOf(pid int, ns Namespace) (*sys.FD, error) {
	if in, err := isInNamespace(pid, ns); !in {
		return nil, err
	}
	fd, err := sys.OpenProc(strconv.Itoa(pid) + "/mountinfo")
	if err != nil {
		return nil, err
	}
	in, err := isInNamespace(pid, ns) // still
	if !in {
		fd.Close()
		return nil, err
	}
	return fd, nil
}

func isInNamespace(pid int, ns Namespace) (bool, error) {
	now, err := Of(pid)
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return err == nil && ns.Same(now), err
}

func (c *mountPoll) closeTable() {
	c.table.Close()
	*c = mountPoll{}
}
