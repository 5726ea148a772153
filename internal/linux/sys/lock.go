// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockFile opens the file at path, makes it with mode 0600 if there is none, and
// takes its exclusive lock (flock). The lock lasts until the FD is closed or the
// process ends. EAGAIN: another process has it.
//
// A killed process keeps its files open for as long as one of its threads waits in the kernel for a file system. So the
// file names its owner, and the lock of an owner that was killed does not count: a new file takes the place of the
// locked file. No thread of a killed process runs the program again.
//
// The file is never removed without a successor: two processes would lock two
// files of one name. A second file, path with ".gate" added, is locked meanwhile.
func LockFile(path string) (*FD, error) {
	gate, err := lockAt(path + ".gate")
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	fd, err := lockAt(path)
	if err == nil {
		return writeOwner(fd)
	}
	if err != unix.EAGAIN || !ownerKilled(path) {
		return nil, err
	}
	// A file of ours takes the place of the locked file. One from an attempt that was cut short may be there.
	next := path + ".next"
	if err := unix.Unlink(next); err != nil && err != unix.ENOENT {
		return nil, err
	}
	if fd, err = lockAt(next); err == nil {
		fd, err = writeOwner(fd)
	}
	if err == nil {
		err = unix.Rename(next, path)
	}
	if err != nil {
		_ = fd.Close()
		return nil, err
	}
	return fd, nil
}

// lockAt opens a file and takes its lock.
func lockAt(path string) (*FD, error) {
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	fd := newFD(n)
	if err := unix.Flock(fd.Int(), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = fd.Close()
		return nil, err
	}
	return fd, nil
}

// writeOwner writes into a locked file who has it: the number of this process and when
// that has started. It closes the file if that fails.
func writeOwner(fd *FD) (*FD, error) {
	pid, err := OwnPID()
	var own ProcStat
	if err == nil {
		own, err = ReadProcStat(strconv.Itoa(pid))
	}
	if err == nil {
		err = unix.Ftruncate(fd.Int(), 0)
	}
	if err == nil {
		_, err = unix.Pwrite(fd.Int(), fmt.Appendf(nil, "%d %s\n", pid, own.Started), 0)
	}
	if err != nil {
		_ = fd.Close()
		return nil, fmt.Errorf("write owner of lock: %w", err)
	}
	return fd, nil
}

// ownerKilled reports whether the process that has written itself into the file has
// been killed and cannot end: its main thread is a zombie, or has SIGKILL pending.
// A number that leads to no process may be of another PID namespace.
func ownerKilled(path string) bool {
	text, err := ReadPathHead(path, nil)
	number, started, ok := strings.Cut(string(bytes.TrimSpace(text)), " ")
	pid, errNumber := strconv.Atoi(number)
	if errors.Join(err, errNumber) != nil || !ok {
		return false
	}
	now, err := ReadProcStat(strconv.Itoa(pid))
	return err == nil && now.Started == started && now.isKilled()
}
