// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestListenerOf(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "sys") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	fd, err := Lookup(dir + "/s")
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	if pid, err := ListenerOf(fd); err != nil || pid != os.Getpid() {
		t.Errorf("process %d, %v, want %d", pid, err, os.Getpid())
	}
	l.Close()
	if _, err := ListenerOf(fd); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody listens: %v, want ECONNREFUSED", err)
	}
	file, err := Lookup(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := ListenerOf(file); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("no socket: %v, want ECONNREFUSED", err)
	}
}

func TestUptimeGoesOn(t *testing.T) {
	t.Parallel()
	first := Uptime()
	if second := Uptime(); second < first || first <= 0 {
		t.Errorf("%v after %v", second, first)
	}
}
