// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// made is a bundle with two entries.
func made(t testing.TB) *Bundle {
	t.Helper()
	b := &Bundle{Manifest: Manifest{Program: "v1", Node: "n1", Time: time.Unix(1700000000, 0).UTC()}}
	for name, content := range map[string]string{"a/b.json": `{"x":1}`, "empty.txt": ""} {
		if err := b.Add(name, "what it is", []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	b.Omit("logs", "there are none")
	return b
}

func written(t testing.TB, b *Bundle) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWrittenCanBeRead(t *testing.T) {
	t.Parallel()
	b, err := Read(bytes.NewReader(written(t, made(t))))
	if err != nil {
		t.Fatal(err)
	}
	if string(b.File("a/b.json")) != `{"x":1}` || b.File("empty.txt") == nil || b.File("none") != nil {
		t.Errorf("files %q", b.files)
	}
	if m := b.Manifest; m.Node != "n1" || m.Program != "v1" || !m.Time.Equal(time.Unix(1700000000, 0)) || len(m.LeftOut) != 1 {
		t.Errorf("manifest %+v", m)
	}
}

func TestAddIsBounded(t *testing.T) {
	t.Parallel()
	var b Bundle
	large := make([]byte, maxEntry+1)
	for _, name := range []string{"/a", "../a", "a/../b", ".a", "a b", "manifest.json", "a/b/c/d/e"} {
		if b.Add(name, "", nil) == nil {
			t.Errorf("%q was added", name)
		}
	}
	for i, name := range []string{"large", "one", "two", "three", "four"} {
		if err := b.Add(name, "", large[min(1, i):]); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.files) != 3 || len(b.Manifest.LeftOut) != 2 || b.Manifest.LeftOut[0].What != "large" || b.Manifest.LeftOut[1].What != "four" {
		t.Errorf("has %d files, left out %+v", len(b.files), b.Manifest.LeftOut)
	}
	if b.Add("one", "", nil) == nil {
		t.Error("one was added twice")
	}
	if _, err := Read(bytes.NewReader(written(t, &b))); err != nil {
		t.Errorf("what is as large as can be is refused: %v", err)
	}
}

// part is one entry of a hostile archive.
type part struct {
	header  tar.Header
	content string
	zeros   int64 // of content, instead of content
}

func file(name, content string) part {
	return part{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600, Format: tar.FormatUSTAR}, content, 0}
}

// manifest names files.
func manifest(t testing.TB, parts ...part) part {
	t.Helper()
	m := Manifest{FormatVersion: formatVersion}
	for _, p := range parts {
		m.Entries = append(m.Entries, Entry{Name: p.header.Name, Size: p.header.Size, SHA256: hash([]byte(p.content))})
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return file(manifestName, string(text))
}

// archive packs parts as they are.
func archive(t testing.TB, parts ...part) []byte {
	t.Helper()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zip)
	for _, p := range parts {
		if err := w.WriteHeader(&p.header); err != nil {
			t.Fatal(err)
		}
		var content io.Reader = strings.NewReader(p.content)
		if p.zeros > 0 {
			content = io.LimitReader(zeros{}, p.zeros)
		}
		if _, err := io.Copy(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Flush(), w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func of(kind byte, name, target string) part {
	return part{tar.Header{Typeflag: kind, Name: name, Linkname: target, Format: tar.FormatUSTAR}, "", 0}
}

// TestHostile: a file that Write did not make is refused, and the error names the entry.
func TestHostile(t *testing.T) {
	t.Parallel()
	a, b := file("a", "1"), file("b", "2")
	huge := part{tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 10 << 30, Format: tar.FormatGNU}, "", 1 << 20}
	pax := part{tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1, Format: tar.FormatPAX, PAXRecords: map[string]string{"comment": "x"}}, "1", 0}
	many := manifest(t, make([]part, maxEntryCount+1)...)
	good := archive(t, manifest(t, a, b), a, b)
	version := file(manifestName, `{"formatVersion":2}`)
	var big []part
	for range 8 {
		p := file("z"+string(rune('a'+len(big))), "")
		p.header.Size = maxEntry / 2
		big = append(big, p)
	}
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"a symbolic link":    {archive(t, manifest(t, a), of(tar.TypeSymlink, "a", "/etc/shadow")), `entry "a" is a symbolic link`},
		"a hard link":        {archive(t, manifest(t, a), of(tar.TypeLink, "a", "b")), `entry "a" is a hard link`},
		"a device":           {archive(t, manifest(t, a), of(tar.TypeChar, "a", "")), `entry "a" is a character device`},
		"a directory":        {archive(t, manifest(t, a), of(tar.TypeDir, "a", "")), `entry "a" is a directory`},
		"an absolute path":   {archive(t, manifest(t, a), file("/a", "1")), `entry "/a" cannot be: its name is an absolute path`},
		"a path that climbs": {archive(t, manifest(t, a), file("x/../../a", "1")), `entry "x/../../a" cannot be: its name climbs out`},
		"one in a manifest":  {archive(t, manifest(t, file("../a", "1"))), `entry "../a" cannot be: its name climbs out`},
		"a duplicate":        {archive(t, manifest(t, a, b), a, a), `entry "a" is there twice`},
		"a manifest's":       {archive(t, manifest(t, a, a), a, a), `entry "a" is there twice`},
		"another content":    {archive(t, manifest(t, a), file("a", "2")), `entry "a" was changed`},
		"another size":       {archive(t, manifest(t, a), file("a", "12")), `entry "a" has 2 bytes, and the manifest says 1`},
		"another order":      {archive(t, manifest(t, a, b), b, a), `entry "b" is not the one`},
		"one too many":       {archive(t, manifest(t, a), a, b), `entry "b" is not the one`},
		"one too few":        {archive(t, manifest(t, a, b), a), `entry "b" is missing`},
		"no manifest":        {archive(t, a, b), `entry "a" is where manifest.json belongs`},
		"a broken manifest":  {archive(t, file(manifestName, "{")), `entry "manifest.json" is no manifest`},
		"another version":    {archive(t, version), `is of format version 2, and this program reads version 1`},
		"too many entries":   {archive(t, many), `names 257 entries`},
		"too large in all":   {archive(t, manifest(t, big...)), `entry "zg" has 16777216 bytes`},
		"another format":     {archive(t, manifest(t, a), pax), `entry "a" has a header that a bundle does not have`},
		"10 GiB of zeros":    {cut(t, manifest(t, a), huge), `entry "zeros" has 10737418240 bytes`},
		"zeros at the end":   {append(bytes.Clone(good), good...), `there is more after its end`},
		"cut off":            {good[:len(good)-20], `entry `},
		"cut in the middle":  {good[:len(good)/2], `entry `},
		"nothing":            {nil, "it is no gzip file"},
		"text":               {[]byte("not a bundle at all"), "it is no gzip file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Read(bytes.NewReader(c.content))
			if got != nil || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("read %v, error %v, want %q", got, err, c.want)
			}
		})
	}
}

// cut packs parts whose last one does not have all that it says.
func cut(t testing.TB, parts ...part) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, p := range parts {
		if err := w.WriteHeader(&p.header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, io.MultiReader(strings.NewReader(p.content), io.LimitReader(zeros{}, p.zeros))); err != nil {
			t.Fatal(err)
		}
	}
	if err := zip.Close(); err != nil { // the archive is not whole, so its writer would refuse
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestZerosAfterTheArchive: a small file that stands for very much is not read to its end.
func TestZerosAfterTheArchive(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zip)
	m := manifest(t)
	if err := errors.Join(w.WriteHeader(&m.header), func() error { _, err := w.Write([]byte(m.content)); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(zip, zeros{}, maxStream); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(&out); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "MiB") {
		t.Errorf("error %v", err)
	}
}

func FuzzRead(f *testing.F) {
	a := file("a", "1")
	f.Add(written(f, made(f)))
	f.Add(archive(f, manifest(f, a), a))
	f.Add(archive(f, manifest(f, a), of(tar.TypeSymlink, "a", "/etc")))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, content []byte) {
		b, err := Read(bytes.NewReader(content))
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Errorf("error %v is no refusal", err)
			}
			return
		}
		if len(b.files) != len(b.Manifest.Entries) {
			t.Errorf("%d files, and %d are named", len(b.files), len(b.Manifest.Entries))
		}
		for _, e := range b.Manifest.Entries {
			if badName(e.Name) != "" || hash(b.File(e.Name)) != e.SHA256 {
				t.Errorf("entry %q was read", e.Name)
			}
		}
	})
}
