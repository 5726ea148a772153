// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// elfFile is a file with two sections: .rodata with texts, and one for the names. rest lies in no section.
func elfFile(texts, rest string) string {
	const names = "\x00.rodata\x00"
	header, sections := make([]byte, 64), make([]byte, 128)
	place := func(section []byte, at, size int) {
		binary.LittleEndian.PutUint64(section[0x18:], uint64(at))
		binary.LittleEndian.PutUint64(section[0x20:], uint64(size))
	}
	copy(header, "\x7fELF\x02\x01")
	binary.LittleEndian.PutUint16(header[0x3a:], 64)
	binary.LittleEndian.PutUint16(header[0x3c:], 2)
	place(sections, 64+len(texts)+len(rest), len(names)) // section 0 has the names
	binary.LittleEndian.PutUint32(sections[64:], 1)
	place(sections[64:], 64, len(texts))
	body := texts + rest + names
	binary.LittleEndian.PutUint64(header[0x28:], uint64(64+len(body)))
	return string(header) + body + string(sections)
}

// TestMarkersAreLookedForWhereTextsAre: in the read-only data of a program, and in all of a file that has none or where not even the text of every
// kubelet is there.
func TestMarkersAreLookedForWhereTextsAre(t *testing.T) {
	t.Parallel()
	binds, replaces := string(programMarkers[bindsMarker]), string(programMarkers[replacesMarker])
	whole := elfFile(binds+replaces, "")
	for name, c := range map[string]struct {
		program         string
		binds, replaces bool
	}{
		"in the data":         {whole, true, true},
		"elsewhere":           {elfFile(binds, replaces), true, false},
		"no text in the data": {elfFile("", binds+replaces), true, true},
		"no program":          {binds + replaces, true, true},
		"cut off":             {whole[:len(whole)-1], true, true},
		"header alone":        {whole[:64], false, false},
		"32 bits":             {"\x7fELF\x01\x01" + whole[6:], true, true},
	} {
		has, err := markersOf(writeProgram(t, c.program))
		if err != nil || has[bindsMarker] != c.binds || has[replacesMarker] != c.replaces {
			t.Errorf("%s: binds %v, replaces %v, %v; want %v and %v", name, has[bindsMarker], has[replacesMarker], err, c.binds, c.replaces)
		}
	}
}

// ownText is in the program of this test.
const ownText = "a text that only the program of this test has"

// TestReadOnlyDataOfARealProgram has its texts, and is a part of it.
func TestReadOnlyDataOfARealProgram(t *testing.T) {
	t.Parallel()
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	texts := readOnlyData(program)
	if texts == nil {
		t.Fatal("this program has no read-only data")
	}
	content, err := io.ReadAll(texts)
	info, errInfo := program.Stat()
	if err != nil || errInfo != nil || !bytes.Contains(content, []byte(ownText)) || int64(len(content)) > info.Size()/2 {
		t.Errorf("%d of %d bytes, %v, %v, with the text of this test: %v", len(content), info.Size(), err, errInfo, bytes.Contains(content, []byte(ownText)))
	}
}

func TestTriesOnceIsReadFromTheProgram(t *testing.T) {
	t.Parallel()
	const once, goesOn = "volume: %q is not mounted", "Volume is marked as uncertain and added into the actual state"
	for name, c := range map[string]struct {
		text    string
		once    bool
		unknown bool
	}{
		"1.18":                     {text: "x" + once + "y", once: true},
		"1.36":                     {text: "x" + goesOn + "y"},
		"both, by a feature gate":  {text: once + string(make([]byte, 2*programChunk)) + goesOn},
		"across the end of a part": {text: string(make([]byte, programChunk+20)) + goesOn + once},
		"neither":                  {text: "is not mounted", unknown: true},
		"empty":                    {unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := (&Node{Program: writeProgram(t, c.text)}).RetriesCleanupOnce()
			if got != c.once || errors.Is(err, errRetriesUnknown) != c.unknown || err != nil && !c.unknown {
				t.Errorf("tries once: %v, %v, want %v, unknown: %v", got, err, c.once, c.unknown)
			}
		})
	}
	n := &Node{}
	if once, err := n.RetriesCleanupOnce(); once || !errors.Is(err, errRetriesUnknown) {
		t.Errorf("without a process: %v, %v, want not known", once, err)
	}
	n.Program = filepath.Join(t.TempDir(), "gone")
	if once, err := n.RetriesCleanupOnce(); once || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, %v, want that the program is not there", once, err)
	}
}

func TestStarted(t *testing.T) {
	m := newMachine(t)
	m.addProcess(7, "kubelet", []string{"kubelet"}, DefaultRoot)
	m.setStartTicks(7, 12_345)
	n, err := (&Finder{Proc: m.proc}).Node(t.Context())
	m.must(err)
	for content, ago := range map[string]time.Duration{"223.45 400.00\n": 100 * time.Second, "": 0, "x 1": 0} {
		m.must(os.WriteFile(filepath.Join(m.proc, "uptime"), []byte(content), 0o644))
		at, err := n.Started()
		if got := time.Since(at).Round(time.Second); ago > 0 && (got != ago || err != nil) || ago == 0 && err == nil {
			t.Errorf("up for %q: started %v ago, %v, want %v", content, got, err, ago)
		}
	}
	if at, err := (&Node{}).Started(); err == nil {
		t.Errorf("without a process: %v", at)
	}
}

// TestOwnStart: the start time that the kernel gives for a process is not before, and not after its start.
func TestOwnStart(t *testing.T) {
	t.Parallel()
	dir := fmt.Sprintf("/proc/%d", os.Getpid())
	started, err := readStartTime(dir)
	if err != nil {
		t.Fatal(err)
	}
	at, err := (&Node{PID: os.Getpid(), process: candidateProcess{dir: dir, started: started}}).Started()
	if age := time.Since(at); err != nil || age < 0 || age > time.Hour {
		t.Errorf("started %v ago, %v", age, err)
	}
}
