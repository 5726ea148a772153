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

func TestParseStat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Server{
		"1 (init) S 0 1 1 0":        {Command: "init", State: 'S'},
		"7 (a b) T (c) R 1":         {Command: "a b) T (c", State: 'R'},
		"7 (\n) Z":                  {Command: "\n", State: 'Z'},
		"7 () t 1":                  {State: 't'},
		"7 (ceph-fuse) ":            {},
		"7 (ceph-fuse)":             {},
		"7 ceph-fuse S":             {},
		")(":                        {},
		"":                          {},
		"7 (ceph-fuse)S 1 2 3 4 5 ": {},
	} {
		got, err := parseStat([]byte(text))
		if (err == nil) != (want != Server{}) || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestIsDevice(t *testing.T) {
	t.Parallel()
	for link, want := range map[string]bool{
		"/dev/fuse": true, "/fuse": true, "/dev/fuse (deleted)": true, "/x/dev/fuse": true,
		"/dev/fuse2": false, "/dev/null": false, "socket:[7]": false, "anon_inode:/fuse": false, "": false,
	} {
		if got := isDevice(link); got != want {
			t.Errorf("%q: %v, want %v", link, got, want)
		}
	}
}
