// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fuse

import "testing"

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
