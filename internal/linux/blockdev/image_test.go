// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package blockdev

import (
	"errors"
	"os"
	"testing"
)

// mappedNode is a node of a kernel that does not number the backing of a device, on which krbd has mapped an image.
func mappedNode(t *testing.T) (Sys, func(name, text string)) {
	t.Helper()
	sys := recordedSys(t, "node.tree")
	must(t, os.Remove(sys.newSysfs().attributePath("rbd3", "diskseq")))
	set := func(name, text string) {
		must(t, os.WriteFile(sys.newSysfs().imagePath("3")+"/"+name, []byte(text+"\n"), 0o600))
	}
	for name, text := range map[string]string{
		"pool_id": "2", "image_id": "10a3b4c5", "name": "csi-vol-1", "current_snap": "-", "client_id": "client4711",
		"config_info": "10.0.0.1 name=x,secret=S csi 1 -",
	} {
		set(name, text)
	}
	return sys, set
}

func TestImageStandsForTheNumber(t *testing.T) {
	t.Parallel()
	sys, set := mappedNode(t)
	first := findDevice(t, sys, "rbd3")
	if again := findDevice(t, sys, "rbd3"); again != first || !first.Known() || first.Sequence != 0 || len(first.Image) != 16 {
		t.Errorf("%+v and %+v, want one image", first, again)
	}
	if part := findDevice(t, sys, "rbd3p1"); part.Image != first.Image {
		t.Errorf("partition %+v, want the image of its disk, %q", part, first.Image)
	}
	seen := map[string]string{first.Image: "at first"}
	for _, name := range []string{"pool_id", "image_id", "name", "current_snap", "client_id", "config_info"} {
		set(name, "another")
		d := findDevice(t, sys, "rbd3")
		if of := seen[d.Image]; of != "" {
			t.Errorf("another %s: the same image as with %s", name, of)
		}
		seen[d.Image] = name
	}
	before := findDevice(t, sys, "rbd3")
	must(t, os.Rename(sys.newSysfs().imagePath("3"), sys.newSysfs().pathAt("old")))
	must(t, os.CopyFS(sys.newSysfs().imagePath("3"), os.DirFS(sys.newSysfs().pathAt("old"))))
	if again := findDevice(t, sys, "rbd3"); again.Image == before.Image || !again.Known() {
		t.Errorf("%+v, want another mapping than %+v of the same image", again, before)
	}
	if err := sys.checkUnchanged(before); !errors.Is(err, ErrChanged) || !sys.isReplaced(before) {
		t.Errorf("error %v, replaced %v, want that it is another", err, sys.isReplaced(before))
	}
}

func TestImageNotKnown(t *testing.T) {
	t.Parallel()
	s := recordedSys(t, "node.tree")
	numbered := findDevice(t, s, "rbd3")
	must(t, os.Remove(s.newSysfs().attributePath("rbd3", "diskseq")))
	bare, disk := findDevice(t, s, "rbd3"), findDevice(t, s, "dm-0")
	if !numbered.Known() || numbered.Image != "" || bare.Known() || disk.Known() || s.isReplaced(bare) {
		t.Errorf("%+v, %+v, %+v; want only the first known, by its number", numbered, bare, disk)
	}
}
