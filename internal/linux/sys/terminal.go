// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
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
