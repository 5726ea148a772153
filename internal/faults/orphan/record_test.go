// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// TestReadRecord: a record is that of the directory it lies in.
func TestReadRecord(t *testing.T) {
	t.Parallel()
	const good = `{"attachmentID":"csi-9","driverName":"d","nodeName":"n","specVolID":"pvc-1","volumeHandle":"h"}`
	for name, c := range map[string]struct {
		text, dir string
		why       string // empty: it is one
	}{
		"this volume":       {good + "\n", "pvc-1", ""},
		"name with a slash": {strings.ReplaceAll(good, "pvc-1", "a/b"), "a~b", ""},
		"empty":             {"", "pvc-1", "empty"},
		"another volume":    {good, "pvc-2", `volume "pvc-1"`},
		"no volume":         {`{"driverName":"d","volumeHandle":"h"}`, "", `volume ""`},
		"no record":         {good[:40], "pvc-1", "cannot be used"},
	} {
		file := filepath.Join(t.TempDir(), "record")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		fd, err := sys.Lookup(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(fd, c.dir)
		fd.Close()
		switch {
		case c.why == "" && (err != nil || r.Driver != "d" || r.Handle != "h"):
			t.Errorf("%s: %+v, %v", name, r, err)
		case c.why != "" && (r != nil || err == nil || !strings.Contains(err.Error(), c.why)):
			t.Errorf("%s: %+v, %v, want %q", name, r, err, c.why)
		}
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"volume-subpaths/v/c/0": true, "volume-subpaths/v/c/12": true, "volume-subpaths/v/c/00": false, "volume-subpaths/v/c/-1": false,
		"volume-subpaths/v/c/+1": false, "volume-subpaths/v/c/x": false, "volume-subpaths/v/0": false, "volumes/v/c/0": false,
	} {
		if got := isSubPathPath(strings.Split(path, "/")); got != want {
			t.Errorf("%q is the place of a subPath: %v", path, got)
		}
	}
	for path, want := range map[string]bool{
		"volumes/kubernetes.io~csi/v/vol_data.json": true, "volumes/kubernetes.io~csi/v/mount/vol_data.json": false,
		"volumes/kubernetes.io~csi/vol_data.json": false, "volumes/kubernetes.io~nfs/v/vol_data.json": false,
		"x/kubernetes.io~csi/v/vol_data.json": false,
	} {
		if got := isRecordPath(strings.Split(path, "/")); got != want {
			t.Errorf("%q is the place of a record: %v", path, got)
		}
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, c := range [][4]string{
		{"/", "/", "/a/b", "/a/b"}, {"/", "/@sub", "/a", "/@sub/a"}, {"/m", "/", "/m/x", "/x"},
		{"/m", "/r", "/m", "/r"}, {"/m", "/r", "/m/x/y", "/r/x/y"},
	} {
		if got := pathInMount(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%q below %q of %q: %q, want %q", c[2], c[0], c[1], got, c[3])
		}
	}
	for _, c := range [][3]string{
		{"/pods", "/pods/u/x", "u"}, {"/pods", "/pods/u", "u"}, {"/pods", "/pods", ""}, {"/pods", "/podsu", ""},
		{"/", "/u/x", "u"}, {"/", "/", ""},
	} {
		if got := firstComponent(c[0], c[1]); got != c[2] {
			t.Errorf("first name of %q below %q: %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
