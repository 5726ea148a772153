// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"fmt"
	"strings"
)

// syntaxError names the line, and its part, that the kernel would not write so.
type syntaxError struct {
	Line   int    // counted from 1
	Column int    // first byte of the part, counted from 1
	Field  string // "mount id", "device", "root", ...
	Value  string // the text there, at most 64 bytes of it
}

// Error names the line, the column, the field and the value.
func (e *syntaxError) Error() string {
	return fmt.Sprintf("parse mountinfo line %d column %d: bad %s %q", e.Line, e.Column, e.Field, e.Value)
}

// lineColumns are the columns of a line. Optional fields come any number of times and end with a hyphen; super options
// are the rest of the line.
var lineColumns = []struct {
	field string
	good  func(word string) bool
}{
	{"mount id", isNumber},
	{"parent id", isNumber},
	{"device", isDevice},
	{"root", isText},
	{"mount point", isText},
	{"mount options", isText},
	{optionalField, isOptional},
	{"file system type", isText},
	{"source", func(string) bool { return true }},
	{superOptions, isText},
}

const (
	optionalField = "optional field or separator"
	superOptions  = "super options"
)

func isText(word string) bool { return word != "" }

func isNumber(word string) bool {
	_, rest := splitNumber(word+" .", ' ')
	return rest == "."
}

func isDevice(word string) bool {
	_, minor := splitNumber(word, ':')
	return isNumber(minor)
}

func isOptional(word string) bool {
	name, value, _ := strings.Cut(word, ":")
	switch name {
	case "shared", "master", "propagate_from":
		return isNumber(value)
	}
	return word != ""
}

// explainSyntax finds the fault in a line that could not be parsed. It is thorough where parsing is fast.
func explainSyntax(line string, number int) error {
	e := &syntaxError{Line: number, Field: "line length"}
	rest := line
	if len(line) <= maxLineBytes {
		rest, e.Field = firstInvalidColumn(line)
	}
	value, _, _ := strings.Cut(rest, " ")
	e.Column = len(line) - len(rest) + 1
	e.Value = strings.Clone(value[:min(len(value), 64)])
	return e
}

// firstInvalidColumn is the first column that is invalid, with the rest of the line.
func firstInvalidColumn(line string) (rest, field string) {
	rest = line
	for i := 0; i < len(lineColumns); {
		c := lineColumns[i]
		word, next, _ := strings.Cut(rest, " ")
		if c.field == superOptions {
			word = rest
		}
		if !c.good(word) {
			return rest, c.field
		}
		if c.field != optionalField || word == "-" {
			i++
		}
		rest = next
	}
	return line, "line"
}
