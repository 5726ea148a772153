// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Quote returns a word of ASCII that a shell reads as s, on one line, without a character that a terminal acts on. A
// text with other characters takes the form $'...', which bash and busybox know.
func Quote(s string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:@%+,=", r))
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var text strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\'' || c == '\\':
			text.WriteString(`\` + string(c))
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&text, `\%03o`, c)
		default:
			text.WriteByte(c)
		}
	}
	return "$'" + text.String() + "'"
}
