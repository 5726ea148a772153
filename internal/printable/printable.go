// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package printable takes control characters out of text, as a terminal would act on them: those of C0 and C1, marks that
// reverse the direction of writing, and bytes that are no UTF-8. Paths, messages of runtimes and answers of servers may
// hold any of them. All that enters a status, an Event, a log or a terminal goes through this package. It hides no
// credentials: package redact does. It also cuts texts, and writes times as all messages have them.
package printable

import (
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Quoted returns s as one line that loses nothing: characters that cannot be printed are escaped as in Go.
func Quoted(s string) string {
	return replace(s, func(rune) bool { return false }, func(part string) string { return strings.Trim(strconv.Quote(part), `"`) })
}

// Text returns s with its lines and tabs. All else that cannot be printed is escaped as JSON does it, so that JSON
// stays the same JSON. Bytes that are no UTF-8 become U+FFFD.
func Text(s string) string {
	return replace(s, func(r rune) bool { return r == '\n' || r == '\t' }, func(part string) string {
		r, size := utf8.DecodeRuneInString(part)
		switch {
		case r == utf8.RuneError && size == 1:
			return "\uFFFD"
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
}

// Line returns s as one line for people, with one space for all that cannot be printed.
func Line(s string) string {
	blank := func(string) string { return " " }
	return strings.Join(strings.Fields(strings.ReplaceAll(replace(s, func(rune) bool { return false }, blank), "\uFFFD", " ")), " ")
}

// Clip cuts a text to a number of bytes, at the border of a character, and shows that it did. Bytes that are no UTF-8
// become U+FFFD.
func Clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}

// ClipMiddle cuts a text to a number of bytes, at least 16, as Clip does, but out of its middle: a sentence begins with the result
// and ends with the next step. Words stay whole where that loses little.
func ClipMiddle(text string, most int) string {
	const mark = " ... "
	near := most / 8
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	head := (most - len(mark)) / 3
	tail := most - len(mark) - head
	before, after := strings.ToValidUTF8(text[:head], ""), strings.ToValidUTF8(text[len(text)-tail:], "")
	if at := strings.LastIndexByte(before, ' '); at >= len(before)-near && at > 0 {
		before = before[:at]
	}
	if at := strings.IndexByte(after, ' '); at >= 0 && at < near {
		after = after[at+1:]
	}
	return before + mark + after
}

// Time is a time in a message.
func Time(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// replace puts another text in the place of each character, or byte that belongs to none, that cannot be printed.
func replace(s string, keep func(r rune) bool, by func(part string) string) string {
	done := 0
	var text strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !(unicode.IsPrint(r) && (r != utf8.RuneError || size > 1)) && !keep(r) {
			text.WriteString(s[done:i])
			text.WriteString(by(s[i : i+size]))
			done = i + size
		}
		i += size
	}
	if done == 0 {
		return s
	}
	text.WriteString(s[done:])
	return text.String()
}

// Fields makes a Text of each string that the pointer leads to: in structs, slices, maps and behind pointers.
func Fields(pointer any) { fields(reflect.ValueOf(pointer)) }

func fields(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fields(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fields(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			fields(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			// A value in a map cannot be set in its place.
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			fields(value)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		if text := Text(v.String()); text != v.String() {
			v.SetString(text)
		}
	}
}

// Writer makes a Text of each write on its way to w. A write must not end within a character.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ to io.Writer }

// Write writes all of p or returns an error.
func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
