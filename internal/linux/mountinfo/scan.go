// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"bytes"
)

// Line is one line of the text, without its end.
type Line []byte

// Mount parses the line, which may be used again afterwards. The error is a
// *SyntaxError with Line 1.
func (l Line) Mount() (Mount, error) {
	var m Mount
	if line := string(l); !m.parseLine(line, true) {
		return Mount{}, explainSyntax(line, 1)
	}
	return m, nil
}

// Numbers are those of the mount, of its parent, and of its device. ok is false for
// a line that does not begin so. It allocates nothing.
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

// EachLine calls fn with every line, until fn returns false.
func EachLine(text []byte, fn func(Line) bool) error {
	return forEachLine(text, func(line Line) (more, ok bool) { return fn(line), true })
}

// EachDevice calls fn with every line of a mount of that device, until fn
// returns false. It reads the columns up to the device and no further, and
// allocates nothing. The device of a btrfs mount is not that of its disk.
func EachDevice(text []byte, major, minor uint32, fn func(Line) bool) error {
	return forEachLine(text, func(line Line) (more, ok bool) {
		found, ok := line.onDevice(major, minor)
		if !found {
			return true, ok
		}
		return fn(line), true
	})
}

// EachBelow calls fn with every line of a mount whose point is strictly below
// dir, which is clean and absolute, until fn returns false. It reads the columns
// up to the point and no further, and allocates nothing.
func EachBelow(text []byte, dir string, fn func(Line) bool) error {
	if dir == "/" {
		dir = "" // so that what follows dir is always a slash and a name
	}
	return forEachLine(text, func(line Line) (more, ok bool) {
		point, ok := line.columnAt(4)
		if !ok || !isBelow(dir, point) {
			return true, ok
		}
		return fn(line), true
	})
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

// forEachLine calls look with every line, until it wants no more or says that the
// line is bad.
func forEachLine(text []byte, look func(Line) (more, ok bool)) error {
	for number := 1; len(text) > 0; number++ {
		line, rest := Line(text), []byte(nil)
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, rest = Line(text[:end]), text[end+1:]
		}
		more, ok := look(line)
		if !ok {
			return explainSyntax(string(line), number)
		}
		if !more {
			return nil
		}
		text = rest
	}
	return nil
}

// columnAt is the one after n others; it is not empty.
func (l Line) columnAt(n int) ([]byte, bool) {
	spaces := 0
	for i, c := range l {
		if c != ' ' {
			continue
		}
		if spaces++; spaces == n {
			end := bytes.IndexByte(l[i+1:], ' ')
			return l[i+1 : max(i+1+end, i+1)], end > 0
		}
	}
	return nil, false
}

// onDevice compares the third column, without reading the first two.
func (l Line) onDevice(major, minor uint32) (found, ok bool) {
	spaces := 0
	for i, c := range l {
		if c != ' ' {
			continue
		}
		if spaces++; spaces == 2 {
			a, rest := splitNumber(l[i+1:], ':')
			b, rest := splitNumber(rest, ' ')
			return uint32(a) == major && uint32(b) == minor, len(rest) > 0
		}
	}
	return false, false
}
