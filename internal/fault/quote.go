// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Most returns at most so many texts of a list. If there are more, another text says how many: more has a verb for the number.
func Most(list []string, most int, more string) []string {
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most]), fmt.Sprintf(more, len(list)-most))
}

// Quote returns a word that a shell reads as s, on one line, without a character that a terminal acts on. Text that can be
// printed stands in single quotes, which dash, bash and busybox read alike. Other text takes the form $'...' of bash and
// busybox, with every byte that is not a plain character in octal: dash takes that for another name, and runs nothing.
func Quote(s string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:@%+,=", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var text strings.Builder
	for _, c := range []byte(s) {
		if plain(rune(c)) {
			text.WriteByte(c)
		} else {
			fmt.Fprintf(&text, `\%03o`, c)
		}
	}
	return "$'" + text.String() + "'"
}
