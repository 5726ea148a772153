// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import "testing"

// TestNames: a message names a path where it has the whole of it, and no longer one.
func TestNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`failed to mkdir "/opt/data": mkdir /opt/data: read-only file system`: true,
		"stat /opt/data: no such file or directory":                           true,
		"stat /opt/data/: no such file or directory":                          true,
		"/opt/data": true,
		"mount /opt/database and then /opt/data,": true,
		"stat /opt/data/more: no such file":       false,
		"stat /opt/data.ini: no such file":        false,
		"stat /opt/data-2: no such file":          false,
		"stat /srv/opt/data: no such file":        false,
		"":                                        false,
	} {
		if got := containsPath(text, "/opt/data/"); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if containsPath("mkdir /: no", "/") {
		t.Error("every path begins with the root")
	}
}
