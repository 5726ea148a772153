// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import "golang.org/x/sys/unix"

// flush drops the input that waits in a terminal: tty(4), TIOCFLUSH with FREAD.
func flush(terminal uintptr) error {
	return unix.IoctlSetPointerInt(int(terminal), unix.TIOCFLUSH, 1)
}
