// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// FD is an open descriptor with one owner, who closes it. It is close-on-exec.
// An FD is not safe for use by several goroutines at once.
type FD struct {
	number int
}

// newFD takes ownership of a raw descriptor. It is the only way to make an FD.
func newFD(n int) *FD { return &FD{number: n} }

// Int is the descriptor's number, -1 once closed. It stays owned by the FD.
func (f *FD) Int() int { return f.number }

// String is the descriptor's number in decimal, as /proc/self/fd names it.
func (f *FD) String() string { return strconv.Itoa(f.number) }

// procPath names the file of f below /proc for the calling thread.
func (f *FD) procPath() string { return ThreadProc("fd/" + f.String()) }

// Close gives the descriptor back. Closing twice, or closing a nil FD, does
// nothing: a deferred Close may follow an early one.
func (f *FD) Close() error {
	if f == nil || f.number < 0 {
		return nil
	}
	n := f.number
	f.number = -1
	return unix.Close(n)
}

// Reopen opens the file of f, which was opened with O_PATH, for reading. It goes by the calling thread's own files,
// which inside WithOwnFDTable are not the process'.
func (f *FD) Reopen() (*FD, error) { return OpenProc(f.procPath()) }

// Dup opens the same file description once more. The caller closes both.
func (f *FD) Dup() (*FD, error) {
	n, err := retryInterrupted(func() (int, error) { return unix.FcntlInt(uintptr(f.number), unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	return newFD(n), nil
}
