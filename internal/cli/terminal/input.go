// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"errors"
	"os"

	"golang.org/x/term"
)

// Size reports whether a file is a terminal, and how many columns it has. 0: the terminal does not say.
func Size(f *os.File) (columns int, isTerminal bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = conn.Control(func(fd uintptr) {
		if isTerminal = term.IsTerminal(int(fd)); isTerminal {
			columns, _, _ = term.GetSize(int(fd))
		}
	})
	return columns, isTerminal && err == nil
}

// FlushInput drops the input of a terminal that was not read yet.
func FlushInput(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var flushed error
	err = conn.Control(func(fd uintptr) { flushed = flush(fd) })
	return errors.Join(err, flushed)
}
