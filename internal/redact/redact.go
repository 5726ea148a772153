// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package redact takes obvious credentials out of text that is about to be shown to others: private keys in PEM, bearer
// tokens, JSON web tokens, passwords in URLs, and the values of names such as password or token. It knows no format and
// reads the text alone, so it errs both ways: it is a last net below authors who leave credentials out, and does not replace them.
package redact

import (
	"regexp"
	"strings"
	"sync"
)

// Mark stands where a credential was.
const Mark = "[redacted]"

// rule finds credentials by a literal, so that text without any is passed over at the speed of a search.
type rule struct {
	// anchor is in lower case and found in any case. The pattern is matched where it begins.
	anchor string
	// word says that no letter or digit may come before the anchor.
	word bool
	// pattern has one group: the text to replace. It is compiled when its anchor is found for the first time: all of them take milliseconds.
	pattern func() *regexp.Regexp
}

// lazily compiles an expression, which is valid, at the first use.
func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// The forms in which a name is given a value. Text is often JSON, or JSON in a string of JSON, and valid JSON has
// to stay valid. So a quote that may end a string of JSON is only passed if the text behind it can't be JSON: there a comma, a
// colon or a bracket comes next.
const (
	// char is a character of a value. The escape is how JSON writes <, > and &.
	char = `(?:[^\s,;&"'\\]|\\u[0-9a-fA-F]{4})`
	// first is the first character of a value that begins with a quote.
	first = `(?:[^\s,;&"'\\:}\]]|\\u[0-9a-fA-F]{4})`

	inCommand = `=(` + char + `+)` // as on command lines, in mount options and in the queries of URLs
	inQuotes  = `=\\*["'](` + first + char + `*)`
	inJSON    = `"\s*:\s*"((?:[^"\\]|\\.)+)`                        // "name":"value"
	inString  = `\\(?:\\\\)*"\s*:\s*\\(?:\\\\)*"([^"\\]+)`          // \"name\":\"value\"
	inSingle  = `\\*'\s*:\s*\\*'([^"'\\]+)`                         // 'name':'value'
	inYAML    = `:[ \t]+["']?([^\s,;"'\\{\[|>:}\]][^\s,;"'\\]{5,})` // name: value
	// A number without quotes is left alone, as it may be JSON.
	inYAMLKey = `["']:[ \t]+([^\s,;"'\\{\[|>:}\]0-9-][^\s,;"'\\}\]]{5,})` // "name": value
)

// rules are made at the first use: a program that does not redact starts without them.
var rules = sync.OnceValue(func() []rule {
	all := []rule{ // credentials that are known by the text around them, and by their beginnings
		// The end may have been cut off.
		{"-----begin ", false, lazily(`^(?is)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----((?:[^"\\]|\\.)+?)(?:-----END |"|\z)`)},
		{"://", false, lazily(`^://[^\s/:@"'\\]*:([^\s/@"'\\]+)@`)},
		{"authorization", false, lazily(`^(?i)authorization\s*[:=]\s*(?:\\*["'])?(?:[a-z]+\s+)?([a-z0-9._~+/=-]{8,})`)},
		{"authorization", false, lazily(`^(?i)authorization\\*["']\s*[:=]\s*\\*["'](?:[a-z]+\s+)?([a-z0-9._~+/=-]{8,})`)},
		{"bearer", true, lazily(`^(?i)bearer\s+([a-z0-9._~+/=-]{16,})`)},
		{"basic", true, lazily(`^(?i)basic\s+([a-z0-9+/]{12,}={0,2})(?:[\s"'\\,]|$)`)},
		{"eyj", true, lazily(`^(eyJ[a-zA-Z0-9_-]{8,}\.[a-zA-Z0-9_-]{8,}\.[a-zA-Z0-9_-]*)`)},
		{"--pass", false, lazily(`^(?i)--pass(?:w(?:or)?d|phrase)?\s+([^\s"'\\-][^\s"'\\]*)`)},
		{"-u ", false, lazily(`^-u\s+[^\s:"'\\]+:([^\s"'\\]+)`)},
		// The keys of AWS have capitals and digits alone.
		{"akia", true, lazily(`^(AKIA[0-9A-Z]{16})`)},
		{"asia", true, lazily(`^(ASIA[0-9A-Z]{16})`)},
	}
	for _, prefix := range []string{"ghp_", "gho_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "sk_live_", "rk_live_"} {
		all = append(all, rule{prefix, true, lazily(`^(` + prefix + `[a-zA-Z0-9_-]{16,})`)})
	}
	// Names that end as the names of credentials do.
	short := []string{inCommand, inQuotes, inJSON, inString, inSingle}
	long := append([]string{inYAML, inYAMLKey}, short...)
	for _, n := range []struct {
		anchor, rest string
		forms        []string
	}{
		{"passw", `(?:or)?d`, long},
		{"passphrase", ``, long},
		{"pass", ``, short},
		{"token", `(?:[_-]?value)?`, long},
		{"secret", `(?:[_-]?key)?(?:[_-]base)?`, short},
		{"_key", ``, short},
		{"_pat", ``, short},
		{"community", ``, short},
		{"api", `[_-]?key`, long},
		{"access", `[_-]?key`, short},
		{"private", `[_-]?key`, short},
		{"credential", `s?`, short},
	} {
		for _, form := range n.forms {
			all = append(all, rule{n.anchor, false, lazily(`^(?is)` + n.anchor + n.rest + form)})
		}
	}
	return all
})

// Text replaces every credential that it recognises by Mark. Valid JSON stays valid JSON.
func Text(text string) string {
	lower := lowered(text)
	for _, r := range rules() {
		if replaced := r.replace(text, lower); replaced != text {
			text, lower = replaced, lowered(replaced)
		}
	}
	return text
}

func (r rule) replace(text, lower string) string {
	var out strings.Builder
	done := 0 // how much of text is in out
	for at := 0; ; {
		next := strings.Index(lower[at:], r.anchor)
		if next < 0 {
			break
		}
		at += next
		m := r.pattern().FindStringSubmatchIndex(text[at:])
		if m == nil || r.word && at > 0 && strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_", rune(lower[at-1])) {
			at += len(r.anchor)
			continue
		}
		out.WriteString(text[done : at+m[2]])
		out.WriteString(Mark)
		done = at + m[3]
		at = done
	}
	if done == 0 {
		return text
	}
	return out.String() + text[done:]
}

// lowered changes ASCII alone, so that offsets stay.
func lowered(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
