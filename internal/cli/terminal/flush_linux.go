// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import "golang.org/x/sys/unix"

// flush drops the input that waits in a terminal: tcflush(3).
func flush(terminal uintptr) error {
	return unix.IoctlSetInt(int(terminal), unix.TCFLSH, unix.TCIFLUSH)
}
