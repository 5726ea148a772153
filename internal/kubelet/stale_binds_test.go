// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubediag.org/kubediag/internal/linux/sys"
)

// writeProgram writes the file of a program.
func writeProgram(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestReplacesBindsIsReadFromTheProgram(t *testing.T) {
	t.Parallel()
	const keeps, renews = "Skipping bind-mounting subpath, already mounted", "error checking subpath mount info for %s: %s"
	pad := func(n int) string { return strings.Repeat("error checking subpath mount\x00", n/29+1)[:n] }
	for name, c := range map[string]struct {
		text    string
		renews  bool
		unknown bool
	}{
		"1.18":                        {text: pad(100) + keeps + pad(5000)},
		"1.19":                        {text: pad(100) + keeps + pad(5000) + renews, renews: true},
		"text at the very beginning":  {text: renews + pad(3<<20), renews: true},
		"across the end of a chunk":   {text: pad(programChunk+10) + renews + pad(100), renews: true},
		"across, with overlap":        {text: pad(programChunk-10) + renews, renews: true},
		"kept across the end":         {text: pad(2*programChunk+20) + keeps + pad(3<<20)},
		"shorter than the text":       {text: "error", unknown: true},
		"no program of a kubelet":     {text: pad(3 << 20), unknown: true},
		"empty":                       {unknown: true},
		"only part of the first text": {text: keeps + pad(2<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := (&Node{Program: writeProgram(t, c.text)}).ReplacesStaleBinds()
			if got != c.renews || errors.Is(err, errReplacesUnknown) != c.unknown || err != nil && !c.unknown {
				t.Errorf("renews: %v, %v, want %v, unknown: %v", got, err, c.renews, c.unknown)
			}
		})
	}
}

func TestReplacesBindsIsUnknownWithoutAProcess(t *testing.T) {
	t.Parallel()
	node, err := Local(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if renews, err := node.ReplacesStaleBinds(); renews || !errors.Is(err, errReplacesUnknown) {
		t.Errorf("renews: %v, %v, want not known", renews, err)
	}
	node.Program = filepath.Join(t.TempDir(), "gone")
	if renews, err := node.ReplacesStaleBinds(); renews || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("renews: %v, %v, want that the program is not there", renews, err)
	}
}

// TestReplacesBindsIsReadOncePerProcess replaces the program under a process, and then the process.
func TestReplacesBindsIsReadOncePerProcess(t *testing.T) {
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
	find := func() *Node {
		n, err := (&Finder{Proc: m.proc}).Node(t.Context())
		m.must(err)
		return n
	}
	expect := func(when string, want bool) {
		t.Helper()
		if got, err := find().ReplacesStaleBinds(); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", when, got, err, want)
		}
	}
	if _, err := find().ReplacesStaleBinds(); err == nil || errors.Is(err, errReplacesUnknown) {
		t.Errorf("without a program: %v, want that it cannot be read", err)
	}
	m.addLink(7, "exe", writeProgram(t, string(programMarkers[bindsMarker])))
	expect("an old kubelet", false)
	m.addLink(7, "exe", writeProgram(t, string(programMarkers[bindsMarker])+string(programMarkers[replacesMarker])))
	expect("the same process", false)
	m.setStartTicks(7, 200)
	expect("another process", true)
}

// TestHabits of kubelets by the texts in their programs. Package test/subpath compares them with real kubelets.
func TestHabits(t *testing.T) {
	t.Parallel()
	program := func(markers ...programMarker) Habits {
		text := ""
		for _, m := range markers {
			text += string(programMarkers[m]) + "\n"
		}
		return (&Node{Program: writeProgram(t, text)}).Habits()
	}
	kubelets := map[string]Habits{
		"1.18": program(bindsMarker), "1.19": program(bindsMarker, replacesMarker), "1.24": program(bindsMarker, replacesMarker, staleHandleMarker),
		"1.37": program(bindsMarker, replacesMarker, staleHandleMarker, corruptedMarker, lazyMarker), "none": program(),
	}
	for _, c := range []struct {
		kubelet        string
		bind           StaleBind
		atStart, atEnd Habit
	}{
		{"1.18", StaleBind{FSType: "ext4"}, Fails, Renews},
		{"1.19", StaleBind{FSType: "ext4"}, Renews, Renews},
		{"1.19", StaleBind{FSType: "ext4", Unchanged: true}, Fails, Renews},
		{"1.19", StaleBind{FSType: "fuse.x"}, HabitUnknown, Renews},
		{"1.37", StaleBind{FSType: "fuse.x"}, Renews, Renews},
		{"1.24", StaleBind{FSType: "nfs4", Errno: sys.ESTALE}, Fails, Renews},
		{"1.37", StaleBind{FSType: "nfs4", Errno: sys.ESTALE}, Renews, Renews},
		{"1.24", StaleBind{FSType: "cifs", Errno: sys.EHOSTDOWN}, Fails, HabitUnknown},
		{"1.19", StaleBind{FSType: "cifs", Errno: sys.ENOENT}, Fails, Fails},
		{"1.24", StaleBind{FSType: "cifs", Errno: sys.ENOENT}, Renews, Renews},
		{"1.19", StaleBind{FSType: "fuse", Errno: sys.ENOENT}, Fails, Fails},
		{"1.37", StaleBind{FSType: "fuse", Errno: sys.ENOENT}, HabitUnknown, HabitUnknown},
		{"1.37", StaleBind{FSType: "nfs", Errno: sys.EPERM}, HabitUnknown, HabitUnknown},
		{"none", StaleBind{FSType: "ext4"}, HabitUnknown, HabitUnknown},
	} {
		start, why := kubelets[c.kubelet].AtStart(c.bind)
		end, whyEnd := kubelets[c.kubelet].AtEnd(c.bind)
		if start != c.atStart || end != c.atEnd || why == "" || whyEnd == "" {
			t.Errorf("kubelet %s, %+v: %q (%s) and %q (%s), want %q and %q", c.kubelet, c.bind, start, why, end, whyEnd, c.atStart, c.atEnd)
		}
		if (start == HabitUnknown) != strings.HasPrefix(why, "not known") {
			t.Errorf("kubelet %s, %+v: %q, and it is said: %s", c.kubelet, c.bind, start, why)
		}
	}
}
