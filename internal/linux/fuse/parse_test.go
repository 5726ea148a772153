// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fuse

import "testing"

func TestParseFdinfo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		connection uint32
		ok         bool
	}{
		"pos:\t0\nflags:\t0100002\nmnt_id:\t24\nino:\t5\nfuse_connection:\t49\n": {49, true},
		"fuse_connection:\t4294967295\n":                                         {4294967295, true},
		"fuse_connection:\t4294967296\n":                                         {4294967295, false},
		"fuse_connection:\t\n":                                                   {},
		"fuse_connection:\t-1\n":                                                 {},
		"x_fuse_connection:\t49\n":                                               {},
		"pos:\t0\nflags:\t0100002\n":                                             {},
		"":                                                                       {},
	} {
		connection, ok := parseFdinfo([]byte(text))
		if ok != want.ok || ok && connection != want.connection {
			t.Errorf("%q: %d, %v, want %+v", text, connection, ok, want)
		}
	}
}

func TestIsDevice(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]bool{
		"/dev/fuse": true, "/fuse": true, "/dev/fuse (deleted)": true, "/x/dev/fuse": true,
		"/dev/fuse2": false, "/dev/null": false, "socket:[7]": false, "anon_inode:/fuse": false, "": false,
	} {
		if got := mayBeFUSEDevice(link); got != want {
			t.Errorf("%q: %v, want %v", link, got, want)
		}
	}
}
