// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package bundle is the format of the one file that goes with a ticket: a tar archive in gzip. Its first entry is
// manifest.json, which names all others with size and SHA-256. It does not know the meaning of the entries.
//
// A bundle comes from anyone. No part of it is ever written to a disk: Read keeps it in memory, within bounds that a
// writer cannot exceed, and refuses a bundle that Write would not have made.
package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"
	"time"
)

// formatVersion is the version of the bundles that this package writes and reads.
const formatVersion = 1

// Bounds of a bundle. Sizes are in bytes, without compression.
const (
	maxEntry      = 32 << 20
	maxTotal      = 96 << 20
	maxEntryCount = 256

	maxManifest = 1 << 20
	// maxStream bounds the archive with its headers and padding.
	maxStream = maxTotal + maxManifest + (maxEntryCount+8)*2*blockSize
	blockSize = 512
)

// manifestName is the name of the first entry.
const manifestName = "manifest.json"

// ErrRefused is the error for a file that is no bundle, or not as it was written.
var ErrRefused = errors.New("bundle is refused")

// Manifest is the table of contents of a bundle.
type Manifest struct {
	FormatVersion int `json:"formatVersion"`
	// Program is the version that has made it, Node where, Time when.
	Program string    `json:"program"`
	Node    string    `json:"node"`
	Time    time.Time `json:"time"`
	Entries []Entry   `json:"entries"`
	// LeftOut lists the missing parts, and why.
	LeftOut []LeftOut `json:"leftOut,omitempty"`
}

// Entry is one file of a bundle.
type Entry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// About describes the entry for people.
	About string `json:"about,omitempty"`
}

// LeftOut is something that is not in a bundle.
type LeftOut struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Bundle is a bundle in memory.
type Bundle struct {
	Manifest Manifest

	files map[string][]byte
	total int64
}

// File returns the content of an entry; nil: there is none.
func (b *Bundle) File(name string) []byte { return b.files[name] }

// Add adds an entry. If it is too large, or the bundle is full, it is left out, and the manifest says so.
func (b *Bundle) Add(name, about string, content []byte) error {
	if why := badName(name); why != "" || name == manifestName {
		return fmt.Errorf("add %q to bundle: its name %s", name, why)
	}
	if b.files[name] != nil {
		return fmt.Errorf("add %q to bundle: there is one already", name)
	}
	switch size := int64(len(content)); {
	case size > maxEntry:
		b.Omit(name, fmt.Sprintf("it has %d MiB, and an entry at most %d", size>>20, maxEntry>>20))
	case b.total+size > maxTotal || len(b.files) >= maxEntryCount:
		b.Omit(name, fmt.Sprintf("the bundle is full: %d MiB, or %d entries", maxTotal>>20, maxEntryCount))
	default:
		if b.files == nil {
			b.files = map[string][]byte{}
		}
		b.total += size
		b.files[name] = append([]byte{}, content...)
		b.Manifest.Entries = append(b.Manifest.Entries, Entry{name, size, hash(content), about})
	}
	return nil
}

// Omit notes a part that is not in the bundle, and why.
func (b *Bundle) Omit(what, why string) {
	b.Manifest.LeftOut = append(b.Manifest.LeftOut, LeftOut{what, why})
}

// Write writes the bundle.
func (b *Bundle) Write(w io.Writer) error {
	b.Manifest.FormatVersion = formatVersion
	manifest, err := json.MarshalIndent(b.Manifest, "", "  ")
	if err != nil {
		return fmt.Errorf("write manifest of bundle: %w", err)
	}
	if len(manifest) > maxManifest {
		return fmt.Errorf("write manifest of bundle: it has more than %d bytes", maxManifest)
	}
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	add := func(name string, content []byte) error {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600, ModTime: b.Manifest.Time.UTC().Truncate(time.Second),
			Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	err = add(manifestName, manifest)
	for _, e := range b.Manifest.Entries {
		if err == nil {
			err = add(e.Name, b.files[e.Name])
		}
	}
	if err == nil {
		err = errors.Join(archive.Close(), zip.Close())
	}
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// goodName matches the names of entries. A name leads down only.
var goodName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*(/[a-zA-Z0-9][a-zA-Z0-9._-]*){0,3}$`)

// badName returns the problem of the name of an entry; empty if it is good.
func badName(name string) string {
	switch {
	case path.IsAbs(name):
		return "is an absolute path"
	case strings.Contains("/"+name+"/", "/../"):
		return "climbs out of the bundle by \"..\""
	case len(name) > 100 || !goodName.MatchString(name):
		return "is none that a bundle has"
	}
	return ""
}

// refuse is an ErrRefused about one entry.
func refuse(name, format string, args ...any) error {
	return fmt.Errorf("%w: entry %q %s", ErrRefused, name, fmt.Sprintf(format, args...))
}

// bounded reads an archive up to a bound, and says so if there is more.
type bounded struct {
	r    io.Reader
	left int64
}

// errTooLarge is the error at the bound.
var errTooLarge = fmt.Errorf("more than %d MiB", int64(maxStream)>>20)

// Read reads from the archive.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// Read reads a bundle, checks all of it, and returns an ErrRefused that names the entry if anything is not as Write
// makes it.
func Read(r io.Reader) (*Bundle, error) {
	in := bufio.NewReader(r) // gzip reads no further than its end then
	zip, err := gzip.NewReader(in)
	if err != nil {
		return nil, fmt.Errorf("%w: it is no gzip file: %w", ErrRefused, err)
	}
	zip.Multistream(false)
	stream := &bounded{zip, maxStream}
	b := &Bundle{files: map[string][]byte{}}
	archive := tar.NewReader(stream)
	if err := b.readManifest(archive); err != nil {
		return nil, err
	}
	for i := 0; ; i++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) && i == len(b.Manifest.Entries) {
			break
		}
		if err := b.readEntry(i, header, archive, err); err != nil {
			return nil, err
		}
	}
	if err := checkEnd(in, stream); err != nil {
		return nil, err
	}
	return b, nil
}

// readManifest reads the first entry.
func (b *Bundle) readManifest(archive *tar.Reader) error {
	header, err := archive.Next()
	if err != nil {
		return broken(manifestName, err)
	}
	if why := strange(header, maxManifest); why != "" || header.Name != manifestName {
		return refuse(header.Name, "%s", cmp.Or(why, "is where "+manifestName+" belongs"))
	}
	content, err := io.ReadAll(archive)
	if err != nil {
		return broken(manifestName, err)
	}
	var version struct {
		FormatVersion int `json:"formatVersion"`
	}
	if err := json.Unmarshal(content, &version); err != nil {
		return refuse(manifestName, "is no manifest: %v", err)
	}
	if version.FormatVersion != formatVersion {
		return refuse(manifestName, "is of format version %d, and this program reads version %d", version.FormatVersion, formatVersion)
	}
	if err := json.Unmarshal(content, &b.Manifest); err != nil {
		return refuse(manifestName, "is no manifest: %v", err)
	}
	if n := len(b.Manifest.Entries); n > maxEntryCount {
		return refuse(manifestName, "names %d entries, and a bundle has at most %d", n, maxEntryCount)
	}
	named := map[string]bool{manifestName: true}
	for _, e := range b.Manifest.Entries {
		if why := badName(e.Name); why != "" {
			return refuse(e.Name, "cannot be: its name %s", why)
		}
		if named[e.Name] {
			return refuse(e.Name, "is there twice")
		}
		named[e.Name] = true
		if b.total += e.Size; e.Size < 0 || e.Size > maxEntry || b.total > maxTotal {
			return refuse(e.Name, "has %d bytes: at most %d MiB an entry, and %d MiB in all", e.Size, maxEntry>>20, maxTotal>>20)
		}
	}
	return nil
}

// readEntry reads the entry at a place of the manifest. err is the error of its header.
func (b *Bundle) readEntry(i int, header *tar.Header, archive *tar.Reader, err error) error {
	want := Entry{Name: fmt.Sprintf("number %d", i+1)}
	if i < len(b.Manifest.Entries) {
		want = b.Manifest.Entries[i]
	}
	if errors.Is(err, io.EOF) {
		return refuse(want.Name, "is missing")
	}
	if err != nil {
		return broken(want.Name, err)
	}
	if why := strange(header, maxEntry); why != "" {
		return refuse(header.Name, "%s", why)
	}
	switch {
	case b.files[header.Name] != nil:
		return refuse(header.Name, "is there twice")
	case i >= len(b.Manifest.Entries), header.Name != want.Name:
		return refuse(header.Name, "is not the one that the manifest names there")
	case header.Size != want.Size:
		return refuse(header.Name, "has %d bytes, and the manifest says %d", header.Size, want.Size)
	}
	content, err := io.ReadAll(archive)
	if err != nil {
		return broken(header.Name, err)
	}
	if hash(content) != want.SHA256 {
		return refuse(header.Name, "was changed: its SHA-256 is not the one of the manifest")
	}
	b.files[header.Name] = content
	return nil
}

// strange returns the field of a header that is not as in a bundle; empty if all are.
func strange(h *tar.Header, limit int64) string {
	kinds := map[byte]string{
		tar.TypeLink: "a hard link", tar.TypeSymlink: "a symbolic link", tar.TypeChar: "a character device", tar.TypeBlock: "a block device",
		tar.TypeDir: "a directory", tar.TypeFifo: "a named pipe",
	}
	kind := kinds[h.Typeflag]
	if kind == "" && h.Typeflag != tar.TypeReg {
		kind = fmt.Sprintf("of type %q", h.Typeflag)
	}
	switch why := badName(h.Name); {
	case kind != "":
		return "is " + kind + ", and no regular file"
	case why != "":
		return "cannot be: its name " + why
	case h.Size > limit:
		return fmt.Sprintf("has %d bytes, and may have %d", h.Size, limit)
	case h.Format != tar.FormatUSTAR || len(h.PAXRecords) > 0:
		return "has a header that a bundle does not have"
	}
	return ""
}

// broken is an ErrRefused for an entry that cannot be read.
func broken(name string, err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(name, "is cut off, or missing")
	case errors.Is(err, errTooLarge):
		return refuse(name, "is in a bundle of %v", err)
	case errors.Is(err, tar.ErrHeader):
		return refuse(name, "has no header that can be read")
	}
	return fmt.Errorf("%w: entry %q cannot be read: %w", ErrRefused, name, err)
}

// checkEnd makes sure that only padding follows the archive, and that gzip's checksum is right.
func checkEnd(input io.Reader, stream io.Reader) error {
	buf := make([]byte, 4096)
	for {
		n, err := stream.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return fmt.Errorf("%w: there is more after its last entry", ErrRefused)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return broken("after the last", err)
		}
	}
	if n, _ := io.ReadFull(input, buf[:1]); n > 0 {
		return fmt.Errorf("%w: there is more after its end", ErrRefused)
	}
	return nil
}
