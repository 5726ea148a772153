// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Columns reports whether a file is a terminal, and how many columns it has. 0: the terminal does not say.
func Columns(f *os.File) (columns int, terminal bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = conn.Control(func(fd uintptr) {
		size, failed := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
		if failed == nil {
			columns, terminal = int(size.Col), true
		}
	})
	return columns, terminal && err == nil
}

// FlushInput drops what was typed on a terminal and was not read yet.
func FlushInput(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var flushed error
	err = conn.Control(func(fd uintptr) { flushed = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIFLUSH) })
	return errors.Join(err, flushed)
}
