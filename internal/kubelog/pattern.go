// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled at its first use. All of them take a millisecond, and most runs of a program read no message.
type pattern struct{ compiled func() *regexp.Regexp }

// newPattern makes one of an expression, which is valid.
func newPattern(expression string) *pattern {
	return &pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// matches reports whether a text has a match.
func (p *pattern) matches(text string) bool { return p.compiled().MatchString(text) }

// groups are the matches in a text, each with its groups.
func (p *pattern) groups(text string) [][]string { return p.compiled().FindAllStringSubmatch(text, -1) }
