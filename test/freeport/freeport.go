// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package freeport finds addresses for the servers that a test starts. It is for tests alone.
package freeport

import (
	"fmt"
	"net"
)

// Find returns n TCP addresses of ip that no process listens on at this moment, no two the same. A test that starts
// several servers asks once for all of them: nothing is held after that, so that a second call can find the same port
// again.
func Find(ip net.IP, n int) ([]*net.TCPAddr, error) {
	var found []*net.TCPAddr
	for range n {
		l, err := net.Listen("tcp4", net.JoinHostPort(ip.String(), "0"))
		if err != nil {
			return nil, fmt.Errorf("find free port: %w", err)
		}
		defer l.Close() // only when all are found
		found = append(found, l.Addr().(*net.TCPAddr))
	}
	return found, nil
}
