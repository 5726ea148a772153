// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/test/growthtest"
)

func TestParseVolumeRecord(t *testing.T) {
	t.Parallel()
	want := &VolumeRecord{Driver: "cephfs.csi.ceph.com", Handle: "0001-x", PersistentVolume: "pvc-1", Node: "n", Lifecycle: "Persistent"}
	for name, c := range map[string]struct {
		text string
		err  string // a part of it; empty: the record above
	}{
		"of a pod": {text: `{"attachmentID":"csi-1","driverName":"cephfs.csi.ceph.com","nodeName":"n","specVolID":"pvc-1",` +
			`"volumeHandle":"0001-x","volumeLifecycleMode":"Persistent"}`},
		"unknown keys, newline": {text: `{"seLinuxMountContext":"","driverName":"cephfs.csi.ceph.com","nodeName":"n","specVolID":"pvc-1",` +
			`"volumeHandle":"0001-x","volumeLifecycleMode":"Persistent"}` + "\n"},
		"empty":           {text: "", err: "empty"},
		"a list":          {text: "[]", err: "no object"},
		"null":            {text: "null", err: "no object"},
		"no handle":       {text: `{"driverName":"d"}`, err: `volumeHandle is ""`},
		"no driver":       {text: `{"volumeHandle":"h"}`, err: `driverName is ""`},
		"handle twice":    {text: `{"driverName":"d","volumeHandle":"h","volumeHandle":"g"}`, err: `"volumeHandle" twice`},
		"escaped twice":   {text: `{"driverName":"d","volumeHandle":"h","volumeHand\u006ce":"g"}`, err: "twice"},
		"number":          {text: `{"driverName":"d","volumeHandle":1}`, err: "no string"},
		"object":          {text: `{"driverName":"d","volumeHandle":{"a":"b"}}`, err: "no string"},
		"cut short":       {text: `{"driverName":"d","volumeHandle":"h"`, err: "record cannot be used"},
		"more behind":     {text: `{"driverName":"d","volumeHandle":"h"}{}`, err: "follows"},
		"zero byte":       {text: `{"driverName":"d","volumeHandle":"h\u0000"}`, err: "no text"},
		"half a rune":     {text: "{\"driverName\":\"d\",\"volumeHandle\":\"h\xff\"}", err: "no text"},
		"only spaces":     {text: "  \n", err: "no object"},
		"other text":      {text: `{"driverName":"d","volumeHandle":"h"}x`, err: "follows"},
		"other capitals":  {text: `{"DriverName":"d","VolumeHandle":"h"}`, err: "both must be set"},
		"a long value":    {text: `{"driverName":"d","volumeHandle":"` + strings.Repeat("h", maxRecordValue+1) + `"}`, err: "longer"},
		"too long":        {text: `{"driverName":"d","volumeHandle":"h"` + strings.Repeat(" ", maxVolumeRecord) + `}`, err: "bytes"},
		"deep":            {text: strings.Repeat(`{"a":`, 3000), err: "no string"},
		"comma at end":    {text: `{"driverName":"d","volumeHandle":"h",}`, err: "record cannot be used"},
		"not even JSON":   {text: `driverName=d`, err: "no object"},
		"byte order mark": {text: "\ufeff{}", err: "no object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseVolumeRecord([]byte(c.text))
			switch {
			case c.err == "" && (err != nil || *got != *want):
				t.Errorf("%+v, %v, want %+v", got, err, want)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Errorf("error %v, want one with %q", err, c.err)
			}
		})
	}
}

// FuzzParseVolumeRecord makes sure that an accepted record has the values that any reader of JSON would take, and names
// something.
func FuzzParseVolumeRecord(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h","specVolID":"pvc-1"}`))
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h","volumeHandle":"g"}`))
	f.Add([]byte(`{"driverName":"d\u0041","volumeHandle":"\ud83d\ude00"}`))
	f.Add([]byte("{\"driverName\":\"d\",\"volumeHandle\":\"h\xff\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		growthtest.Text(t, 1<<13, string(text), func(text string) {
			_, _ = parseVolumeRecord([]byte(text))
			_, _ = parseVolumeRecord([]byte(`{"driverName":"d","volumeHandle":"h",` + text + "}"))
		})
		r, err := parseVolumeRecord(text)
		if err != nil {
			if r != nil {
				t.Errorf("%+v beside error %v", r, err)
			}
			return
		}
		var plain map[string]string
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatalf("taken, though it is none: %v", err)
		}
		if r.Driver == "" || r.Handle == "" || plain["driverName"] != r.Driver || plain["volumeHandle"] != r.Handle || len(text) > maxVolumeRecord {
			t.Errorf("%+v of %q", r, text)
		}
	})
}

// TestReadVolumeRecord: a record that is longer than usual is read. A record that is too long, or that is no file, is
// refused.
func TestReadVolumeRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func(name string) (*VolumeRecord, error) {
		fd, err := sys.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		defer fd.Close()
		return ReadVolumeRecord(fd)
	}
	text := `{"driverName":"d","volumeHandle":"h"}`
	for size, want := range map[int]error{
		len(text): nil, usualVolumeRecord: nil, usualVolumeRecord + 1: nil, maxVolumeRecord: nil, 0: ErrEmptyVolumeRecord,
		maxVolumeRecord + 1: errVolumeRecord, 1 << 20: errVolumeRecord,
	} {
		name := filepath.Join(dir, strconv.Itoa(size))
		if err := os.WriteFile(name, []byte((text + strings.Repeat(" ", max(0, size-len(text))))[:size]), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := read(name); !errors.Is(err, want) || want == nil && (r == nil || r.Handle != "h") {
			t.Errorf("%d bytes: %+v, %v, want %v", size, r, err, want)
		}
	}
	if r, err := read(dir); !errors.Is(err, sys.EINVAL) {
		t.Errorf("a directory: %+v, %v, want EINVAL", r, err)
	}
}
