// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"bytes"
	"iter"
)

// Line is one line of the text, without its end.
type Line []byte

// Lines goes through the lines of a text. It allocates nothing.
func Lines(text []byte) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		for line := range bytes.Lines(text) {
			if !yield(bytes.TrimSuffix(line, []byte{'\n'})) {
				return
			}
		}
	}
}

// Mount parses the line, which may be used again afterwards. Its error names line 1.
func (l Line) Mount() (Mount, error) {
	var m Mount
	if line := string(l); !m.parseLine(line, true) {
		return Mount{}, explainSyntax(line, 1)
	}
	return m, nil
}

// Numbers returns the numbers of the mount, of its parent, and of its device. ok is false for a line that does not
// begin so. It allocates nothing.
func (l Line) Numbers() (id, parent int, major, minor uint32, ok bool) {
	id, rest := splitNumber(l, ' ')
	parent, rest = splitNumber(rest, ' ')
	a, rest := splitNumber(rest, ':')
	b, rest := splitNumber(rest, ' ')
	return id, parent, uint32(a), uint32(b), len(rest) > 0
}

// FSType is the type of the file system, escaped. It allocates nothing.
func (l Line) FSType() ([]byte, bool) {
	_, rest, found := bytes.Cut(l, []byte(" - ")) // no text before it has a blank
	name, _, more := bytes.Cut(rest, []byte(" "))
	return name, found && more && len(name) > 0
}

// Below reports whether the mount's point is strictly below dir, which is clean and absolute. It reads the columns up
// to the point and no further, and allocates nothing. Its errors are those of Mount.
func (l Line) Below(dir string) (bool, error) {
	rest := []byte(l)
	for range 4 {
		_, rest, _ = bytes.Cut(rest, []byte{' '})
	}
	point, _, found := bytes.Cut(rest, []byte{' '})
	if !found || len(point) == 0 {
		return false, explainSyntax(string(l), 1)
	}
	if dir == "/" {
		dir = "" // so that a slash and a name always follow dir
	}
	return isBelow(dir, point), nil
}

// isBelow reports whether point, escaped, begins with dir, a slash and a name.
func isBelow(dir string, point []byte) bool {
	for i := range len(dir) {
		c, size := decodeByte(point)
		if size == 0 || c != dir[i] {
			return false
		}
		point = point[size:]
	}
	c, size := decodeByte(point)
	return c == '/' && len(point) > size
}

// decodeByte reads the first byte of an escaped text, and how long it is written.
func decodeByte(text []byte) (c byte, size int) {
	if len(text) == 0 {
		return 0, 0
	}
	if text[0] == '\\' && len(text) >= 4 {
		if c, ok := decodeOctal(text); ok {
			return c, 4
		}
	}
	return text[0], 1
}
