// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// The changes that a watch can report, and the bits of Event.Mask. The kernel adds WatchIgnored and WatchOverflow by
// itself. For a directory, WatchAttrib and the two after WatchDeleteSelf also report its entries.
const (
	WatchAttrib     uint32 = unix.IN_ATTRIB      // a name of the inode is gone, or its mode, owner or times changed
	WatchMoveSelf   uint32 = unix.IN_MOVE_SELF   // the inode was renamed
	WatchDeleteSelf uint32 = unix.IN_DELETE_SELF // the inode itself is gone: no name, no user
	WatchDelete     uint32 = unix.IN_DELETE      // an entry was removed
	WatchMovedFrom  uint32 = unix.IN_MOVED_FROM  // an entry was renamed, under its old name
	WatchIgnored    uint32 = unix.IN_IGNORED     // the watch is no more: removed, inode gone, or file system unmounted
	WatchOverflow   uint32 = unix.IN_Q_OVERFLOW  // events were lost
)

// eventBuffer holds some 240 events with the longest names at once.
const eventBuffer = 64 << 10

// Event is something that happened to a watched inode.
type Event struct {
	Watch int    // which watch, as Add gave it; -1 for WatchOverflow
	Mask  uint32 // the event; also bits that the watch did not request
	Name  string // the directory entry that it happened to; empty for the inode itself
}

// Watcher is an inotify instance: it reports events on inodes. A watch keeps its inode in memory, but no mount and no
// namespace busy: a watched file system can be unmounted. Read is for one goroutine; the other methods are for any, at
// any time.
type Watcher struct {
	file *os.File
	buf  []byte
}

// NewWatcher makes an instance that watches nothing yet. EMFILE: the user has
// fs.inotify.max_user_instances of them, or the process too many files.
func NewWatcher() (*Watcher, error) {
	n, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// As it does not block, the runtime's poller waits for it.
	return &Watcher{file: os.NewFile(uintptr(n), "inotify"), buf: make([]byte, eventBuffer)}, nil
}

// Add watches the inode that fd, opened in whichever mount namespace and with O_PATH or otherwise, lies on; fd may be
// closed afterwards. A second Add of the same inode gives the same number and adds its events. ENOSPC: the user has
// fs.inotify.max_user_watches. EACCES: the inode may not be read. os.ErrClosed after Close.
func (w *Watcher) Add(fd *FD, mask uint32) (watch int, err error) {
	err = w.withInstance(func(instance int) error {
		add := func(path string) func() error {
			return func() (err error) {
				watch, err = retryInterrupted(func() (int, error) { return unix.InotifyAddWatch(instance, path, mask|unix.IN_MASK_ADD) })
				return err
			}
		}
		if !InPrivateThread() {
			return add("/proc/" + fd.procPath())()
		}
		return inDirectory(ownProc, add(fd.procPath())) // in another namespace the path /proc may be forged
	})
	if err != nil {
		return 0, err
	}
	return watch, nil
}

// Remove ends a watch, which WatchIgnored confirms. A watch that is not there,
// or no more, is fine. Numbers are not used again before 2^31 others were.
func (w *Watcher) Remove(watch int) error {
	err := w.withInstance(func(instance int) error {
		_, err := unix.InotifyRmWatch(instance, uint32(watch))
		return err
	})
	if err == unix.EINVAL {
		return nil
	}
	return err
}

// withInstance calls fn with the instance, which stays open for as long.
func (w *Watcher) withInstance(fn func(instance int) error) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failure error
	if raw.Control(func(n uintptr) { failure = fn(int(n)) }) != nil {
		return os.ErrClosed // there is no other reason
	}
	return failure
}

// Read waits for events and gives all that there are, in their order. It waits in
// the runtime's poller, not in a thread. os.ErrClosed: Close was called, before or
// meanwhile.
func (w *Watcher) Read() ([]Event, error) {
	n, err := w.file.Read(w.buf)
	if err != nil {
		return nil, err
	}
	return parseEvents(w.buf[:n]), nil
}

// parseEvents reads one struct inotify_event after the other, each followed by
// a name that zeros fill up to the length it says.
func parseEvents(buf []byte) (events []Event) {
	for len(buf) >= unix.SizeofInotifyEvent {
		word := func(off int) uint32 { return binary.NativeEndian.Uint32(buf[off:]) }
		end := min(unix.SizeofInotifyEvent+uint64(word(12)), uint64(len(buf)))
		name, _, _ := bytes.Cut(buf[unix.SizeofInotifyEvent:end], []byte{0})
		events = append(events, Event{Watch: int(int32(word(0))), Mask: word(4), Name: string(name)})
		buf = buf[end:]
	}
	return events
}

// Close ends all watches, and a Read that waits. Closing twice gives
// os.ErrClosed.
func (w *Watcher) Close() error { return w.file.Close() }
