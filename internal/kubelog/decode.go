// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"
)

// minArray is the least length of an array. A single number in brackets is a number.
const minArray = 2

// Decode returns text as it was before programs wrote it down for each other. Byte arrays as Go prints them, such as
// [114 98 100], become the text that they are. Quotes, line breaks, tabs and carriage returns that were escaped,
// once or in quotes of quotes, become plain again.
//
// A list that is no array of bytes (a 300 in it, cut in the middle), or a list of bytes that are no text, stays as it is.
// So do all other escapes: \x2d is part of the names of systemd, \040 of names in a mount table. The content of an
// array is not decoded a second time. The result is not longer than text. It may hold anything: print it escaped.
func Decode(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	for {
		i := strings.IndexAny(text, `[\`)
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		decode := escape
		if text[i] == '[' {
			decode = array
		}
		decoded, length := decode(text[i:])
		b.WriteString(decoded)
		text = text[i+length:]
	}
}

// array decodes one number, one space, one number, as fmt prints a slice of bytes, and returns the length that it has read.
func array(s string) (decoded string, length int) {
	var content []byte
	for i := 1; i < len(s); {
		value, digits := number(s[i:])
		if digits == 0 {
			return s[:i], i
		}
		i += digits
		content = append(content, value)
		if i == len(s) {
			return s, i
		}
		switch s[i] {
		case ' ':
			i++
		case ']':
			if i++; len(content) >= minArray && isText(content) {
				return string(content), i
			}
			return s[:i], i
		default:
			return s[:i], i
		}
	}
	return s, len(s)
}

// number reads a decimal number up to 255 without leading zeros. If there is none, digits is 0.
func number(s string) (value byte, digits int) {
	n := 0
	for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
		n = n*10 + int(s[digits]-'0')
		if digits++; n > 255 || digits > 1 && s[0] == '0' {
			return 0, 0
		}
	}
	return byte(n), digits
}

// isText distinguishes printed bytes from other numbers: they are UTF-8, there is a letter, and at most a quarter are
// control characters. Colours of a terminal are as many.
func isText(content []byte) bool {
	if !utf8.Valid(content) {
		return false
	}
	letters, control, all := 0, 0, 0
	for _, r := range string(content) {
		all++
		switch {
		case unicode.IsLetter(r):
			letters++
		case !unicode.IsGraphic(r) && !unicode.IsSpace(r):
			control++
		}
	}
	return letters > 0 && control <= all/4
}

// escapes maps the characters behind a backslash to their meaning.
var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r"}

// escape decodes a run of backslashes with the character behind it, and returns the length that it has read. Quoted once more, a quote gets twice as many and one
// before it: 1, 3, 7; a line break gets twice as many: 1, 2, 4. Other numbers mean that a backslash was there at first.
func escape(s string) (decoded string, length int) {
	n := len(s) - len(strings.TrimLeft(s, `\`))
	if n == len(s) {
		return s, n
	}
	if s[n] == '"' && bits.OnesCount(uint(n+1)) == 1 {
		return `"`, n + 1
	}
	if plain, ok := escapes[s[n]]; ok && bits.OnesCount(uint(n)) == 1 {
		return plain, n + 1
	}
	return s[:n], n
}
