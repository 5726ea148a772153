// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

// maxWording bounds the part of a text that is compared with the wordings, in bytes. The kubelet cuts messages far earlier.
const maxWording = 64 << 10

// wording describes a fault in the words of programs: one phrase of each list in all, and no phrase of none. Phrases and patterns are for
// texts as simplify writes them.
type wording struct {
	code fault.Code
	all  [][]string
	none []string
	// mounts is set if the text must be about making a mount, or a container with one.
	mounts bool
	// like must match, and unlike must not. Both may be nil.
	like, unlike *pattern
}

// codes lists the faults whose wordings a text has, in order. A wording is no proof.
func codes(text string) (found []fault.Code) {
	plain := simplify(text)
	mounts := hasAny(notMounting.Replace(plain), mounting)
	for _, w := range wordings {
		lacks := func(phrases []string) bool { return !hasAny(plain, phrases) }
		if (mounts || !w.mounts) && !slices.ContainsFunc(w.all, lacks) && !hasAny(plain, w.none) &&
			(w.like == nil || w.like.matches(plain)) && (w.unlike == nil || !w.unlike.matches(plain)) {
			found = append(found, w.code)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// simplify returns text in small letters, one space between words and one at either end, without quotes and backslashes.
func simplify(text string) string {
	text = strings.Map(func(r rune) rune {
		switch r {
		case '\\', '"', '\'', '`', '‘', '’', '“', '”':
			return -1
		}
		return r
	}, strings.ToLower(text[:min(len(text), maxWording)]))
	return " " + strings.Join(strings.Fields(text), " ") + " "
}

func hasAny(text string, phrases []string) bool {
	return slices.ContainsFunc(phrases, func(p string) bool { return strings.Contains(text, p) })
}
