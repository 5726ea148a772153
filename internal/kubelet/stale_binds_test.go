// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
