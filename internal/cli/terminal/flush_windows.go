// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import "golang.org/x/sys/windows"

// flush drops the input that waits in a terminal: FlushConsoleInputBuffer.
func flush(terminal uintptr) error {
	return windows.FlushConsoleInputBuffer(windows.Handle(terminal))
}
