// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"strings"
	"testing"
)

const good = `{"attachmentID":"csi-9","driverName":"d","nodeName":"n","specVolID":"pvc-1","volumeHandle":"h",` +
	`"volumeLifecycleMode":"Persistent"}`

func TestParseRecord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text, dir string
		why       string // empty: it is one
	}{
		"of 1.18":           {good + "\n", "pvc-1", ""},
		"of a later one":    {strings.TrimSuffix(good, "}") + `,"seLinuxMountContext":""}`, "pvc-1", ""},
		"name with a slash": {strings.ReplaceAll(good, "pvc-1", "a/b"), "a~b", ""},
		"empty":             {"", "pvc-1", "cannot be parsed"},
		"only spaces":       {"  \n", "pvc-1", "cannot be parsed"},
		"null":              {"null", "pvc-1", "no driver"},
		"another volume":    {good, "pvc-2", `volume "pvc-1"`},
		"no volume":         {`{"driverName":"d","volumeHandle":"h"}`, "", `volume ""`},
		"no handle":         {strings.Replace(good, `"h"`, `""`, 1), "pvc-1", "no driver or no volume handle"},
		"no driver":         {`{"volumeHandle":"h","specVolID":"pvc-1"}`, "pvc-1", "no driver or no volume handle"},
		"cut off":           {good[:40], "pvc-1", "cannot be parsed"},
		"two objects":       {good + good, "pvc-1", "follows its object"},
		"other text":        {good + "x", "pvc-1", "follows its object"},
		"a list":            {"[" + good + "]", "pvc-1", "cannot be parsed"},
		"no strings":        {`{"driverName":{"a":1}}`, "pvc-1", "cannot be parsed"},
		"too long":          {good + strings.Repeat(" ", maxRecord), "pvc-1", "more than 16384 bytes"},
	} {
		r, err := parseRecord([]byte(c.text), c.dir)
		if c.why == "" {
			if err != nil || r.driver != "d" || r.handle != "h" {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, want %q", name, err, c.why)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(good), "pvc-1")
	f.Add([]byte("{}"), "")
	f.Add([]byte(good+"{"), "a~b")
	f.Fuzz(func(t *testing.T, text []byte, dir string) {
		r, err := parseRecord(text, dir)
		if (r == nil) == (err == nil) {
			t.Fatalf("record %+v, error %v", r, err)
		}
		if err == nil && (len(text) > maxRecord || r.driver == "" || r.handle == "" || r.dir() != dir) {
			t.Errorf("took %q for the record of %q", text, dir)
		}
	})
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"volume-subpaths/v/c/0": true, "volume-subpaths/v/c/12": true, "volume-subpaths/v/c/00": false, "volume-subpaths/v/c/-1": false,
		"volume-subpaths/v/c/+1": false, "volume-subpaths/v/c/x": false, "volume-subpaths/v/0": false, "volumes/v/c/0": false,
	} {
		if got := isSubPath(strings.Split(path, "/")); got != want {
			t.Errorf("%q is the place of a subPath: %v", path, got)
		}
	}
	for path, want := range map[string]bool{
		"volumes/kubernetes.io~csi/v/vol_data.json": true, "volumes/kubernetes.io~csi/v/mount/vol_data.json": false,
		"volumes/kubernetes.io~csi/vol_data.json": false, "volumes/kubernetes.io~nfs/v/vol_data.json": false,
		"x/kubernetes.io~csi/v/vol_data.json": false,
	} {
		if got := isRecord(strings.Split(path, "/")); got != want {
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
		if got := within(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%q below %q of %q: %q, want %q", c[2], c[0], c[1], got, c[3])
		}
	}
	for _, c := range [][3]string{
		{"/pods", "/pods/u/x", "u"}, {"/pods", "/pods/u", "u"}, {"/pods", "/pods", ""}, {"/pods", "/podsu", ""},
		{"/", "/u/x", "u"}, {"/", "/", ""},
	} {
		if got := first(c[0], c[1]); got != c[2] {
			t.Errorf("first name of %q below %q: %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
