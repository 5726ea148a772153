// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParse holds that every way of reading a text finds the same in it, that a
// refusal names a place in it, and that nothing panics or hangs.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"kubelet-1.18.mountinfo", "tricky.mountinfo"} {
		f.Add(recorded(f, name))
		for line := range strings.Lines(recorded(f, name)) {
			f.Add(line)
		}
	}
	f.Add("1 2 0:4 / /p rw shared:5 master:6 propagate_from:7 unbindable later - t t rw")
	f.Add("1 2 0:4 / /p rw  - t t rw\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, err := ParseBytes([]byte(text))
		if err != nil {
			checkSyntaxError(t, text, err)
			return
		}
		checkLines(t, text, mounts)
		checkBelow(t, text, mounts)
		table := NewTable(mounts)
		for _, m := range mounts {
			table.On(m.Point)
		}
	})
}

func checkSyntaxError(t *testing.T, text string, err error) {
	var syntax *syntaxError
	if !errors.As(err, &syntax) {
		t.Fatalf("error %v, want a *syntaxError", err)
	}
	lines := strings.Split(text, "\n")
	if syntax.Line < 1 || syntax.Line > len(lines) || syntax.Field == "line" {
		t.Fatalf("error %v names no place in %q", err, text)
	}
	line := lines[syntax.Line-1]
	if syntax.Column < 1 || syntax.Column > len(line)+1 || !strings.HasPrefix(line[syntax.Column-1:], syntax.Value) {
		t.Fatalf("error %v does not describe %q", err, line)
	}
}

func checkLines(t *testing.T, text string, mounts []Mount) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, m := range mounts {
		line := Line(lines[i])
		alone, err := line.Mount()
		if diff := cmp.Diff(m, alone); err != nil || diff != "" {
			t.Fatalf("line %d alone: %v %s", i+1, err, diff)
		}
		id, parent, major, minor, ok := line.Numbers()
		if !ok || id != m.ID || parent != m.Parent || major != m.Major || minor != m.Minor {
			t.Fatalf("numbers of line %d: %d %d %d:%d, %v, want %+v", i+1, id, parent, major, minor, ok, m)
		}
	}
}

func checkBelow(t *testing.T, text string, mounts []Mount) {
	if len(mounts) == 0 {
		return
	}
	for _, dir := range []string{mounts[0].Point, path.Dir(mounts[0].Point), "/"} {
		if !path.IsAbs(dir) || path.Clean(dir) != dir {
			continue
		}
		var want []int
		for _, m := range mounts {
			rest, ok := strings.CutPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/")
			if ok && rest != "" {
				want = append(want, m.ID)
			}
		}
		if diff := cmp.Diff(want, idsBelow(t, text, dir)); diff != "" {
			t.Fatalf("below %q: %s", dir, diff)
		}
	}
}

// FuzzUnescape holds that Unescape inverts the kernel's escapes.
func FuzzUnescape(f *testing.F) {
	f.Add("/sp ace\ttab\nnl\\040#x")
	f.Add(`\\\040`)
	f.Fuzz(func(t *testing.T, name string) {
		escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`).Replace(name)
		if got := Unescape(escaped); got != name {
			t.Fatalf("Unescape(%q) = %q, want %q", escaped, got, name)
		}
		if got := Unescape(name); len(got) > len(name) {
			t.Fatalf("Unescape(%q) = %q, longer", name, got)
		}
	})
}
