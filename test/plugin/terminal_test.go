// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package plugin

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a terminal of 160 columns: the side of the person, and that of the program.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 160})
	}
	must(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { _ = program.Close() })
	return person, program
}

// asks runs a diagnosis of the pod on a terminal, and answers its question.
func (p *plugin) asks(t *testing.T, answer string, patterns ...string) {
	t.Helper()
	person, program := terminal(t)
	b := &background{Cmd: p.command(t.Context(), "run", "pod/core2")}
	b.Env = append(b.Env, "TERM=xterm", "NO_COLOR=1")
	b.Stdin, b.Stdout, b.Stderr = program, program, program
	must(t, b.Start())
	_ = program.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(b, person) // it ends with an error when the program has ended
	}()
	b.await(t, `Heal\? `)
	if _, err := io.WriteString(person, answer+"\n"); err != nil {
		t.Fatal(err)
	}
	_ = b.Wait()
	<-read
	t.Logf("on a terminal:\n%s", strings.ReplaceAll(b.Text(), "\r", ""))
	want := map[string]int{"n": 1, "y": 0}[answer]
	if status := b.ProcessState.ExitCode(); status != want {
		t.Errorf("answer %q: status %d, want %d", answer, status, want)
	}
	if bytes.Contains([]byte(b.Text()), []byte("\x1b")) {
		t.Errorf("colour although NO_COLOR is set: %q", b.Text())
	}
	expect(t, strings.ReplaceAll(b.Text(), "\r\n", "\n"), patterns...)
}
