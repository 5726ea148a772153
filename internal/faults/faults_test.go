// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"testing"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/mount"
)

func TestMountIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	st := mount.State{ID: mount.ID{UniqueID: 1 << 40, MountInfoID: 216, Parent: 22, Major: 254, Minor: 1, Root: "/a//deleted", Point: "/b"}, FSType: "ext4"}
	m := MountOfState(st, 4026531841)
	if id, err := MountID(m); err != nil || id != st.ID {
		t.Errorf("read %+v, %v, want %+v", id, err, st.ID)
	}
	if m.Namespace != 4026531841 || m.FSType != "ext4" || m.Device != "254:1" {
		t.Errorf("written as %+v", m)
	}
}

func FuzzMountID(f *testing.F) {
	for _, device := range []string{"254:1", "0:99", "8:1x", ":", "-1:1", "99999999999:1", ""} {
		f.Add(device)
	}
	f.Fuzz(func(t *testing.T, device string) {
		id, err := MountID(fault.Mount{Device: device})
		if err != nil {
			return
		}
		again, err := MountID(MountOfState(mount.State{ID: id}, 0))
		if err != nil || again != id {
			t.Errorf("%q is read as %+v, written and read again as %+v, %v", device, id, again, err)
		}
	})
}
