// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ListenerOf returns the process that listens on a stream socket of a file system, which the caller has opened with
// O_PATH, in the caller's process namespace; 0 if it is in no visible namespace. It connects and sends nothing; the
// other end notices no more. It does not wait: EAGAIN if the other end accepts no connection. ECONNREFUSED: no process
// listens, or it is no socket. It must not be called in a thread of another mount namespace.
func ListenerOf(socket *FD) (pid int, err error) {
	n, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	defer newFD(n).Close()
	to := &unix.SockaddrUnix{Name: "/proc/" + socket.procPath()}
	if err := retryInterruptedError(func() error { return unix.Connect(n, to) }); err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	peer, err := unix.GetsockoptUcred(n, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, fmt.Errorf("ask who listens: %w", err)
	}
	return int(peer.Pid), nil
}
