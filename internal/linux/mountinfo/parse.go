// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// MaxLine bounds one line. The kernel writes two paths of at most a page each,
// every byte of them escaped to four, and options of a page or two.
const MaxLine = 1 << 20

// maxText bounds what Parse reads: a table of some 300,000 mounts.
const maxText = 64 << 20

// Parse reads the whole text, up to 64 MiB, into mounts in the text's order.
// A line that is not as the kernel writes it ends the reading with a
// *SyntaxError.
func Parse(r io.Reader) ([]Mount, error) {
	var text strings.Builder
	n, err := io.Copy(&text, io.LimitReader(r, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	if n > maxText {
		return nil, fmt.Errorf("read mountinfo: more than %d bytes", maxText)
	}
	return ParseString(text.String())
}

// ParseBytes is Parse of a buffer, which may be used again afterwards.
func ParseBytes(text []byte) ([]Mount, error) { return ParseString(string(text)) }

// ParseString is Parse of a text in memory.
func ParseString(text string) ([]Mount, error) {
	mounts := make([]Mount, 0, strings.Count(text, "\n")+1)
	s := NewScanner(text)
	for s.more() {
		mounts = append(mounts, Mount{})
		s.next(&mounts[len(mounts)-1])
	}
	if s.err != nil {
		return nil, s.err
	}
	return mounts, nil
}

// Scanner parses a text one line at a time. It allocates nothing but the
// strings that have escapes in them.
type Scanner struct {
	text   string
	at     int // where the next line begins
	line   int // how many came before it
	escape int // where the next backslash stands; few lines have any
	mount  Mount
	err    error
}

// NewScanner starts before the first line of text.
func NewScanner(text string) Scanner {
	return Scanner{text: text, escape: index(text, 0, '\\')}
}

// Scan goes to the next line and tells whether there was one and it was good.
func (s *Scanner) Scan() bool {
	if !s.more() {
		return false
	}
	s.mount = Mount{}
	s.next(&s.mount)
	return s.err == nil
}

// Mount is the line that Scan went to. It changes with the next Scan; its
// strings are parts of the text and do not.
func (s *Scanner) Mount() *Mount { return &s.mount }

// Err is the *SyntaxError that ended the scan, nil at the end of the text.
func (s *Scanner) Err() error { return s.err }

func (s *Scanner) more() bool { return s.err == nil && s.at < len(s.text) }

// next parses the next line into m, which is zero.
func (s *Scanner) next(m *Mount) {
	end := index(s.text, s.at, '\n')
	line := s.text[s.at:end]
	s.line++
	if !m.parse(line, s.escape < end) {
		s.err = explain(line, s.line)
	}
	if s.at = end + 1; s.escape < s.at {
		s.escape = index(s.text, s.at, '\\')
	}
}

// index is where the first c at or after at stands, or the text's end.
func index(text string, at int, c byte) int {
	if at >= len(text) {
		return len(text)
	}
	if n := strings.IndexByte(text[at:], c); n >= 0 {
		return at + n
	}
	return len(text)
}

// parse fills m, which is zero, from one line, and tells whether the line is
// whole. What is missing leaves nothing to what follows, so that a look at the
// texts at the end is enough. Texts are unescaped only where the line has a
// backslash at all.
func (m *Mount) parse(line string, escaped bool) bool {
	if len(line) > MaxLine {
		return false
	}
	m.ID, line = number(line, ' ')
	m.Parent, line = number(line, ' ')
	major, line := number(line, ':')
	minor, line := number(line, ' ')
	m.Major, m.Minor = uint32(major), uint32(minor)
	m.Root, line = column(line)
	m.Point, line = column(line)
	m.Options, line = column(line)
	m.FSType, line = column(m.optional(line))
	m.Source, m.SuperOptions = column(line)
	if escaped {
		m.Root, m.Point = Unescape(m.Root), Unescape(m.Point)
		m.FSType, m.Source = Unescape(m.FSType), Unescape(m.Source)
	}
	return m.Root != "" && m.Point != "" && m.Options != "" && m.FSType != "" && m.SuperOptions != ""
}

// column splits a line behind its first column; nothing is left of a line that
// ends with it.
func column(line string) (word, rest string) {
	if end := strings.IndexByte(line, ' '); end >= 0 {
		return line[:end], line[end+1:]
	}
	return "", ""
}

// number is column for decimal digits, at least one, with the byte end after
// them; nothing is left of a line that does not begin so.
func number(line string, end byte) (n int, rest string) {
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
	return 0, ""
}

// optional reads the tagged columns and the separator after them. Tags that it
// does not know are left out, as proc_pid_mountinfo(5) asks of every reader.
func (m *Mount) optional(line string) (rest string) {
	for {
		switch {
		case strings.HasPrefix(line, "- "):
			return line[2:]
		case strings.HasPrefix(line, "shared:"):
			m.Shared, line = number(line[len("shared:"):], ' ')
		case strings.HasPrefix(line, "master:"):
			m.Master, line = number(line[len("master:"):], ' ')
		case strings.HasPrefix(line, "propagate_from:"):
			m.PropagateFrom, line = number(line[len("propagate_from:"):], ' ')
		case strings.HasPrefix(line, "unbindable "):
			m.Unbindable, line = true, line[len("unbindable "):]
		case strings.HasPrefix(line, " "):
			return ""
		default:
			if _, line = column(line); line == "" {
				return ""
			}
		}
	}
}
