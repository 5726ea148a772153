// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"math"
	"strings"
)

// maxLineBytes bounds one line. The kernel writes two paths of at most a page each,
// every byte of them escaped to four, and options of a page or two.
const maxLineBytes = 1 << 20

// ParseBytes parses the whole text into mounts in the text's order. The buffer may be used again afterwards. A line
// that the kernel would not write so ends the reading with an error that names the line and its column.
func ParseBytes(b []byte) ([]Mount, error) {
	text := string(b)
	mounts := make([]Mount, 0, strings.Count(text, "\n")+1)
	escape := indexFrom(text, 0, '\\') // the next backslash; few lines have any
	for at, line := 0, 1; at < len(text); line++ {
		end := indexFrom(text, at, '\n')
		mounts = append(mounts, Mount{})
		if !mounts[len(mounts)-1].parseLine(text[at:end], escape < end) {
			return nil, explainSyntax(text[at:end], line)
		}
		if at = end + 1; escape < at {
			escape = indexFrom(text, at, '\\')
		}
	}
	return mounts, nil
}

// indexFrom is where the first c at or after at stands, or the text's end.
func indexFrom(text string, at int, c byte) int {
	if at >= len(text) {
		return len(text)
	}
	if n := strings.IndexByte(text[at:], c); n >= 0 {
		return at + n
	}
	return len(text)
}

// parseLine fills m, which is zero, from one line, and reports whether the line is whole. A missing column empties all
// later ones, so one test of the texts at the end is enough. Texts are unescaped only if the line has a backslash.
//
// A line has these columns, see proc_pid_mountinfo(5):
//
//	612 29 8:17 /cfg/app.yaml /etc/app.yaml rw,noatime shared:318 - ext4 /dev/sdb1 rw,discard
//	(1) (2)(3)  (4)           (5)           (6)        (7)       (8)(9)  (10)      (11)
//
//	 (1) ID: the number of the mount, which the kernel reuses once the mount is gone
//	 (2) Parent: the number of the mount that it is mounted on
//	 (3) Major, Minor: the device of the file system
//	 (4) Root: the directory or file of the file system that the mount shows
//	 (5) Point: the path of the mount, from the root directory of the process
//	 (6) Options: the options of the mount
//	 (7) Shared, Master, PropagateFrom, Unbindable: optional columns, any number of them
//	 (8) the end of the optional columns
//	 (9) FSType: the type of the file system, with its subtype after a point
//	(10) Source: the origin of the file system, such as its device
//	(11) SuperOptions: the options of the file system, and the rest of the line
func (m *Mount) parseLine(line string, escaped bool) bool {
	if len(line) > maxLineBytes {
		return false
	}
	m.ID, line = splitNumber(line, ' ')
	m.Parent, line = splitNumber(line, ' ')
	major, line := splitNumber(line, ':')
	minor, line := splitNumber(line, ' ')
	m.Major, m.Minor = uint32(major), uint32(minor)
	m.Root, line = splitColumn(line)
	m.Point, line = splitColumn(line)
	m.Options, line = splitColumn(line)
	m.FSType, line = splitColumn(m.parseOptional(line))
	m.Source, m.SuperOptions = splitColumn(line)
	if escaped {
		m.Root, m.Point = Unescape(m.Root), Unescape(m.Point)
		m.FSType, m.Source = Unescape(m.FSType), Unescape(m.Source)
	}
	return m.Root != "" && m.Point != "" && m.Options != "" && m.FSType != "" && m.SuperOptions != ""
}

// splitColumn splits a line behind its first column; the rest of a line that ends with it is empty.
func splitColumn(line string) (word, rest string) {
	if end := strings.IndexByte(line, ' '); end >= 0 {
		return line[:end], line[end+1:]
	}
	return "", ""
}

// splitNumber is splitColumn for decimal digits, at least one, with the byte end after them; the rest of a line that
// does not begin so is empty.
func splitNumber[T string | ~[]byte](line T, end byte) (n int, rest T) {
	for i := 0; i < len(line); i++ {
		d := line[i] - '0'
		if d > 9 || n > math.MaxInt32/10 {
			if line[i] != end || i == 0 {
				break
			}
			return n, line[i+1:]
		}
		n = n*10 + int(d)
	}
	return 0, rest
}

// parseOptional reads the tagged columns and the separator after them. Tags that it
// does not know are left out, as proc_pid_mountinfo(5) asks of every reader.
func (m *Mount) parseOptional(line string) (rest string) {
	for {
		switch {
		case strings.HasPrefix(line, "- "):
			return line[2:]
		case strings.HasPrefix(line, "shared:"):
			m.Shared, line = splitNumber(line[len("shared:"):], ' ')
		case strings.HasPrefix(line, "master:"):
			m.Master, line = splitNumber(line[len("master:"):], ' ')
		case strings.HasPrefix(line, "propagate_from:"):
			m.PropagateFrom, line = splitNumber(line[len("propagate_from:"):], ' ')
		case strings.HasPrefix(line, "unbindable "):
			m.Unbindable, line = true, line[len("unbindable "):]
		case strings.HasPrefix(line, " "):
			return ""
		default:
			if _, line = splitColumn(line); line == "" {
				return ""
			}
		}
	}
}
