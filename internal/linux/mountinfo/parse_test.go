// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func recorded(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func recordedTable(t *testing.T, name string) *Table {
	t.Helper()
	mounts, err := ParseBytes([]byte(recorded(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	return NewTable(mounts)
}

func TestParseLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		line string
		want Mount
	}{
		"stale subPath": {
			line: "216 22 254:1 /pods/u/..2021/nginx.log//deleted /pods/u/volume-subpaths/conf/app/1 rw,relatime shared:1 - ext4 /dev/vda1 rw,data=ordered",
			want: Mount{
				ID: 216, Parent: 22, Major: 254, Minor: 1,
				Root: "/pods/u/..2021/nginx.log//deleted", Point: "/pods/u/volume-subpaths/conf/app/1",
				Options: "rw,relatime", Shared: 1, FSType: "ext4", Source: "/dev/vda1", SuperOptions: "rw,data=ordered",
			},
		},
		"no optional field": {
			line: "63 43 0:39 / / rw - tmpfs tmpfs rw",
			want: Mount{ID: 63, Parent: 43, Minor: 39, Root: "/", Point: "/", Options: "rw", FSType: "tmpfs", Source: "tmpfs", SuperOptions: "rw"},
		},
		"every optional field and one not known": {
			line: "1 2 3:4 / /p rw shared:5 master:6 propagate_from:7 unbindable later:x mark - fuse.sshfs u@h:/ rw",
			want: Mount{
				ID: 1, Parent: 2, Major: 3, Minor: 4, Root: "/", Point: "/p", Options: "rw",
				Shared: 5, Master: 6, PropagateFrom: 7, Unbindable: true,
				FSType: "fuse.sshfs", Source: "u@h:/", SuperOptions: "rw",
			},
		},
		"escapes": {
			line: `1 2 0:4 /a\040b\134040 /t\011n\012 rw,x=\054 - ty\040pe s\043c rw,lowerdir=/a\040b`,
			want: Mount{
				ID: 1, Parent: 2, Minor: 4, Root: `/a b\040`, Point: "/t\tn\n", Options: `rw,x=\054`,
				FSType: "ty pe", Source: "s#c", SuperOptions: `rw,lowerdir=/a\040b`,
			},
		},
		"empty source, root without a slash, source like a separator": {
			line: "88 64 0:4 net:[4026531833] /k/ns rw - nsfs  rw",
			want: Mount{ID: 88, Parent: 64, Minor: 4, Root: "net:[4026531833]", Point: "/k/ns", Options: "rw", FSType: "nsfs", SuperOptions: "rw"},
		},
		"source that looks like the separator": {
			line: "1 2 0:4 / /p rw shared:9 - tmpfs - rw - x",
			want: Mount{ID: 1, Parent: 2, Minor: 4, Root: "/", Point: "/p", Options: "rw", Shared: 9, FSType: "tmpfs", Source: "-", SuperOptions: "rw - x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Line(tc.line).Mount()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseReadsRecordedTables(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"kubelet-1.18.mountinfo": 5, "tricky.mountinfo": 25} {
		text := recorded(t, name)
		mounts, err := ParseBytes([]byte(text))
		if err != nil || len(mounts) != want {
			t.Errorf("%s: %d mounts, %v, want %d", name, len(mounts), err, want)
		}
		bare, err := ParseBytes([]byte(strings.TrimSuffix(text, "\n")))
		if diff := cmp.Diff(mounts, bare); err != nil || diff != "" {
			t.Errorf("%s without its last line end: %v %s", name, err, diff)
		}
	}
}

func TestParseNamesWhatIsBad(t *testing.T) {
	t.Parallel()
	const good = "1 2 0:4 / /p rw shared:9 - tmpfs tmpfs rw"
	for name, tc := range map[string]struct {
		line, field, value string
		column             int
	}{
		"empty line":             {"", "mount id", "", 1},
		"no number":              {"x1 2 0:4 / /p rw - t t rw", "mount id", "x1", 1},
		"negative number":        {"1 -2 0:4 / /p rw - t t rw", "parent id", "-2", 3},
		"number too large":       {"1 99999999999 0:4 / /p rw - t t rw", "parent id", "99999999999", 3},
		"device without colon":   {"1 2 04 / /p rw - t t rw", "device", "04", 5},
		"device without minor":   {"1 2 0: / /p rw - t t rw", "device", "0:", 5},
		"two spaces":             {"1 2 0:4  /p rw - t t rw", "root", "", 9},
		"cut in the mount point": {"1 2 0:4 / /pa", "mount options", "", 14},
		"no separator":           {"1 2 0:4 / /p rw shared:9", "optional field or separator", "", 25},
		"peer group no number":   {"1 2 0:4 / /p rw shared:x - t t rw", "optional field or separator", "shared:x", 17},
		"peer group missing":     {"1 2 0:4 / /p rw master: - t t rw", "optional field or separator", "master:", 17},
		"empty optional field":   {"1 2 0:4 / /p rw  - t t rw", "optional field or separator", "", 17},
		"no super options":       {"1 2 0:4 / /p rw - t t", "super options", "", 22},
		"cut behind the source":  {"1 2 0:4 / /p rw - t t ", "super options", "", 23},
		"too long":               {"1 2 0:4 / /" + strings.Repeat("p", maxLineBytes) + " rw - t t rw", "line length", "1", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseBytes([]byte(good + "\n" + tc.line + "\n" + good))
			var got *syntaxError
			if !errors.As(err, &got) {
				t.Fatalf("error %v, want a *syntaxError", err)
			}
			want := &syntaxError{Line: 2, Column: tc.column, Field: tc.field, Value: tc.value}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if !strings.HasPrefix(err.Error(), fmt.Sprintf("parse mountinfo line 2 column %d: bad %s ", tc.column, tc.field)) {
				t.Errorf("error %q", err)
			}
		})
	}
}

func TestUnescape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":               "",
		"/plain":         "/plain",
		`/a\040b`:        "/a b",
		`\040\040`:       "  ",
		`/a\134040`:      `/a\040`,
		`/a\\040`:        `/a\ `,
		`/a\04`:          `/a\04`,
		`/a\048`:         `/a\048`,
		`/a\400`:         `/a\400`,
		`/a\377\000`:     "/a\xff\x00",
		`/a\`:            `/a\`,
		`/a\x41`:         `/a\x41`,
		`/\303\244\040ä`: "/ä ä",
	} {
		if got := Unescape(in); got != want {
			t.Errorf("Unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDeleted(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]struct {
		path string
		ok   bool
	}{
		"/gone//deleted":          {"/gone", true},
		"/d/e//deleted":           {"/d/e", true},
		`/sp\040ace//deleted`:     {`/sp\040ace`, true},
		"/deleted":                {"/deleted", false},
		"/x/deleted":              {"/x/deleted", false},
		"/x (deleted)":            {"/x (deleted)", false},
		"//deleted":               {"//deleted", false},
		"/gone//deleted/more":     {"/gone//deleted/more", false},
		"/gone//deletedx":         {"/gone//deletedx", false},
		"":                        {"", false},
		"/gone//deleted//deleted": {"/gone//deleted", true},
	} {
		if path, ok := Deleted(root); path != want.path || ok != want.ok {
			t.Errorf("Deleted(%q) = %q, %v, want %q, %v", root, path, ok, want.path, want.ok)
		}
	}
}
