// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The error numbers other than ENOTCONN and ESTALE that a file system answers with
// when it has lost its server, or when a name is no good.
const (
	ECONNABORTED = unix.ECONNABORTED
	EHOSTDOWN    = unix.EHOSTDOWN
	ESHUTDOWN    = unix.ESHUTDOWN
	ENAMETOOLONG = unix.ENAMETOOLONG
)

// The calls below wait for the file system, for ever if need be. If that has taken
// the request and never answers, the thread cannot even be killed: they are only
// for processes that can be lost.

// StatForceSync returns the file system's own, present facts about the file.
func (f *FD) StatForceSync(mask uint32) (Stat, error) {
	return statx(f.number, "", unix.AT_STATX_FORCE_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_EMPTY_PATH, mask)
}

// FileSystemReadOnly asks the file system (statfs), and reports whether it, or the
// mount, is read-only.
func (f *FD) FileSystemReadOnly() (bool, error) {
	st, err := f.statfs()
	return st.Flags&unix.ST_RDONLY != 0, err
}

// impossibleName is longer than a name can be in any file system, and short enough for a path.
var impossibleName = strings.Repeat("x", 4000)

// AskWrite asks whether the directory that f, opened with O_PATH, lies on can be written to now, and writes nothing: it
// removes an entry whose name no file system can hold. The kernel first waits for the permission to write, which a file
// system that is frozen does not give. EROFS: nothing may be written there. Nil: it may.
func (f *FD) AskWrite() error {
	err := RemoveDirAt(f, impossibleName)
	if errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// OpenEntries opens the directory that f, opened with O_PATH, lies on, so that
// its entries can be read. Reading them will not change when it was last read.
// The caller closes it.
func (f *FD) OpenEntries() (*FD, error) {
	flags := unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	// Not by /proc/self: the calling thread may have descriptors of its own.
	name := f.procPath()
	dir, err := openProc(name, flags|unix.O_NOATIME)
	if err == unix.EPERM { // another user's, and no capability for it
		dir, err = openProc(name, flags)
	}
	return dir, err
}

// ReadSomeEntries reads the first entries of the directory, opened by OpenEntries, 4 KiB at most. On a remote or
// user-space file system the kernel then checks the entries, and forgets those that have changed. The mounts of these
// have an unlinked root then.
func (f *FD) ReadSomeEntries() error {
	var buf [4 << 10]byte
	_, err := retryInterrupted(func() (int, error) { return unix.ReadDirent(f.number, buf[:]) })
	return err
}

// WithOwnFDTable is OnThread with a table of descriptors of the thread's own: the descriptors that fn opens go with the
// thread, even if the thread can end and the rest of the process cannot. The table begins as a copy of the process'
// table. No file for which the runtime's poller waits may be opened in it. It lacks the later descriptors of other
// threads.
func WithOwnFDTable(fn func() error) error {
	if err := openBase(); err != nil {
		return err
	}
	return OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		return fn()
	})
}

// openBase opens the descriptors that the process keeps: /proc and the runtime's poller. Every thread, and so every
// table, needs them.
var openBase = sync.OnceValue(func() error {
	if _, err := Procfs(); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	r.Close()
	return w.Close()
})

// ThreadID is the number of the calling thread. The caller must be locked to it.
func ThreadID() int { return unix.Gettid() }

// DiesWithParent is for os.ProcAttr.Sys: the child gets SIGKILL when the thread
// that started it ends, or the whole process.
func DiesWithParent() *ProcAttr { return &ProcAttr{Pdeathsig: unix.SIGKILL} }
