// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package fuse reports the kernel's facts about FUSE connections, without a request to the processes that serve them:
// whether one is dead, how many requests wait for an answer, and which processes serve it. It can abort one.
//
// Nothing here waits for a server. It decides nothing: that a connection is to
// be aborted is for its callers to know. It rests on the control file system
// (the kernel's Documentation/filesystems/fuse.rst, "Control filesystem"), which
// need not be mounted for it, and on proc_pid_fdinfo(5).
package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrNoConnection: there is no FUSE connection of that number, or not any more.
var ErrNoConnection = errors.New("no such FUSE connection")

// Connection holds the kernel's facts about a connection.
type Connection struct {
	// Dead: the server is gone or the connection was aborted. It is a hint: the
	// kernel has no word for it, but sets max_background to its greatest value
	// then, and so could root. A stat that gives ENOTCONN confirms it, and does
	// not wait in that case.
	Dead bool
	// Waiting is how many requests have no answer yet. A request that waits at one moment proves little; one that stays
	// proves much.
	Waiting int
}

// Control is the control file system of FUSE. Its methods may be called by
// several goroutines at once.
type Control struct {
	root *sys.FD
	// knownMounted is a time at which the control file system had been made already.
	knownMounted time.Time
}

// controlMountPoint is where distributions mount the control file system.
const controlMountPoint = "/sys/fs/fuse/connections"

// Open opens the control file system, on a mount of its own that is attached
// nowhere (5.2), or else where the machine has it mounted. The error satisfies
// errors.Is(err, errors.ErrUnsupported) where there is neither. The caller
// closes it.
func Open() (*Control, error) {
	root, err := sys.MountDetached("fusectl")
	if err != nil {
		var elsewhere error
		if root, elsewhere = sys.OpenFUSEControl(controlMountPoint); elsewhere != nil {
			return nil, fmt.Errorf("open FUSE control file system: %w (%w, %w)", errors.ErrUnsupported, err, elsewhere)
		}
	}
	return newControl(root)
}

// newControl takes ownership of root. There is one control file system for the
// whole machine, and it may be far older than this. Both times of its root are
// when it was made, until the directory is listed or a connection goes (seen on
// 6.18). So the earlier one is the better, and the first look is the best.
func newControl(root *sys.FD) (*Control, error) {
	st, err := root.Stat(sys.StatAccessed | sys.StatChanged)
	if err != nil {
		return nil, fmt.Errorf("read times of FUSE control file system: %w", errors.Join(err, root.Close()))
	}
	c := &Control{root: root, knownMounted: time.Now()}
	if st.Has(sys.StatChanged) && st.Changed.Before(c.knownMounted) {
		c.knownMounted = st.Changed
	}
	if st.Has(sys.StatAccessed) && st.Accessed.Before(c.knownMounted) {
		c.knownMounted = st.Accessed
	}
	return c, nil
}

// Close gives the control file system back.
func (c *Control) Close() error { return c.root.Close() }

// Connection describes the connection of the mounts whose device is 0:minor.
// ErrNoConnection if there is none.
func (c *Control) Connection(minor uint32) (Connection, error) {
	limit, err := c.readNumber(minor, "max_background")
	if err != nil {
		return Connection{}, err
	}
	waiting, err := c.readNumber(minor, "waiting")
	if err != nil {
		return Connection{}, err
	}
	return Connection{Dead: limit == math.MaxUint32, Waiting: int(waiting)}, nil
}

// clockSlack is how long after the control file system was made it may have taken in
// the connections that there were before: as long as that may be interrupted,
// and a tick of the clock, which is 10 ms at most.
const clockSlack = time.Second

// Since returns the time at which the connection of the mounts whose device is 0:minor was made; they were mounted at
// that time. Neither the death of the server nor an abort changes it. But the user who mounted it can move it, by a
// chmod of its directory in the control file system. known is false if the connection may be older than the control
// file system. This holds for connections that were there before Open if nothing else had the control file system open
// or mounted. ErrNoConnection if there is none.
func (c *Control) Since(minor uint32) (at time.Time, known bool, err error) {
	st, err := c.root.StatAt(strconv.FormatUint(uint64(minor), 10), sys.StatChanged)
	if err != nil {
		return time.Time{}, false, wrapError("read time of", minor, err)
	}
	if !st.Has(sys.StatChanged) || !st.Changed.After(c.knownMounted.Add(clockSlack)) {
		return time.Time{}, false, nil
	}
	return st.Changed, true, nil
}

// readNumber reads a number. The kernel empties the files of a connection that goes.
func (c *Control) readNumber(minor uint32, name string) (uint64, error) {
	var buf [32]byte
	text, err := sys.ReadBelow(c.root, connectionFile(minor, name), buf[:])
	if err != nil {
		return 0, wrapError("read", minor, err)
	}
	if text = bytes.TrimSpace(text); len(text) == 0 {
		return 0, wrapError("read", minor, ErrNoConnection)
	}
	n, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return 0, wrapError("read", minor, err)
	}
	return n, nil
}

// Abort ends the connection of the mounts whose device is 0:minor: everything
// that waits for it fails, data that the server has not stored is lost, and the
// mounts answer ENOTCONN from then on. It does not wait for the server.
// ErrNoConnection if there is none.
func (c *Control) Abort(minor uint32) error {
	if err := sys.WriteBelow(c.root, connectionFile(minor, "abort"), "1"); err != nil {
		return wrapError("abort", minor, err)
	}
	return nil
}

func connectionFile(minor uint32, name string) string {
	return strconv.FormatUint(uint64(minor), 10) + "/" + name
}

func wrapError(op string, minor uint32, err error) error {
	if errors.Is(err, sys.ENOENT) {
		err = ErrNoConnection
	}
	return fmt.Errorf("%s FUSE connection %d: %w", op, minor, err)
}
