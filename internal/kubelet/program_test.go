// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"testing"
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
