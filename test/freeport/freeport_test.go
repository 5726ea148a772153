// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package freeport

import (
	"net"
	"testing"
)

func TestFoundPortsDifferAndAreFree(t *testing.T) {
	t.Parallel()
	const n = 200
	ip := net.IPv4(127, 77, 3, 1) // no other process listens here meanwhile
	found, err := Find(ip, n)
	if err != nil || len(found) != n {
		t.Fatalf("%d addresses, %v", len(found), err)
	}
	for _, address := range found {
		if !address.IP.Equal(ip) {
			t.Errorf("%s is none of %s", address, ip)
		}
		l, err := net.ListenTCP("tcp4", address) // fails for the second of two that are the same
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
