// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys_test

import (
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

func TestParseMountAttr(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]sys.MountAttr{
		"rw,relatime":                            0,
		"rw":                                     sys.AttrStrictATime,
		"ro,noatime":                             sys.AttrReadOnly | sys.AttrNoATime,
		"rw,nosuid,nodev,noexec,relatime":        sys.AttrNoSUID | sys.AttrNoDev | sys.AttrNoExec,
		"rw,nodiratime,relatime,nosymfollow":     sys.AttrNoDirATime | sys.AttrNoSymfollow,
		"rw,relatime,idmapped":                   sys.AttrIDMap,
		"rw,relatime,something=ro,of,the,future": 0,
	} {
		if got := sys.ParseMountAttr(options); got != want {
			t.Errorf("%q: %#x, want %#x", options, got, want)
		}
	}
}
