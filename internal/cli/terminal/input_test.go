// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSize(t *testing.T) {
	t.Parallel()
	plain, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if columns, is := Size(plain); columns != 0 || is {
		t.Errorf("a file is a terminal of %d columns", columns)
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	for _, want := range []uint16{0, 40, 120} {
		if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: want}); err != nil {
			t.Fatal(err)
		}
		if columns, is := Size(terminal); columns != int(want) || !is {
			t.Errorf("%d columns, terminal %t, want %d", columns, is, want)
		}
	}
	if err := plain.Close(); err != nil {
		t.Fatal(err)
	}
	if _, is := Size(plain); is {
		t.Error("a closed file is a terminal")
	}
}
