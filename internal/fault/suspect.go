// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"slices"
	"strings"
)

// maxSuspectText bounds how much of a text is read. The kubelet cuts messages far earlier.
const maxSuspectText = 64 << 10

// Suspect says which faults a text may speak of, in order. Texts come from runtimes, events and termination messages,
// which a container can write to: a suspicion is a reason to look, never a reason to act, and no suspicion is no
// reason not to look.
//
// It goes by structure, not by one wording: a text that speaks of mounting, by the words at its end for the cause, and
// by whether the cause is about a kubelet's volume-subpaths directory, or one of its volumes; one that speaks of giving a
// device up, and of what is busy; or one that says of a path that its connection, or the server's handle, is gone. Every runtime quotes differently, some quote quotes of quotes; so quotes, backslashes and capitals are
// taken out first. Byte arrays are not read: package kubelog turns them into text.
func Suspect(text string) []Code {
	plain := simplify(text)
	var codes []Code
	if speaksOfHeldDevice(plain) {
		codes = append(codes, HeldDevice)
	}
	codes = append(codes, brokenVolumes(plain)...)
	if speaksOfMounts(plain) {
		codes = append(codes, bindFaults(plain)...)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}

// bindFaults reads a text that speaks of mounting for why a bind could not be made.
func bindFaults(plain string) (codes []Code) {
	subPath := strings.Contains(plain, "subpath")
	switch {
	case containsAny(plain, "not a directory", "is a directory", "onto a file", "onto a directory"):
		codes = append(codes, SourceTypeMismatch)
	case subPath && strings.Contains(plain, "//deleted "), strings.Contains(plain, "prepare subpath"):
		codes = append(codes, StaleSubPath)
	case ofVolume(plain) && strings.Contains(plain, "//deleted "):
		codes = append(codes, DeletedVolumeSource)
	case lookupFailed(plain), missingDevice(plain):
		codes = append(codes, MissingBindSource)
	case strings.Contains(plain, missing) && subPath:
		codes = append(codes, StaleSubPath)
	case strings.Contains(plain, missing) && ofVolume(plain):
		codes = append(codes, MissingBindSource, DeletedVolumeSource)
	case strings.Contains(plain, missing):
		codes = append(codes, MissingBindSource, StaleSubPath)
	}
	return codes
}

// missing is how the C library, and everything that asks it, words ENOENT.
const missing = "no such file or directory"

// simplify gives text in small letters, one space between words, without anything that quotes.
func simplify(text string) string {
	if len(text) > maxSuspectText {
		text = text[:maxSuspectText]
	}
	text = strings.Map(func(r rune) rune {
		switch r {
		case '\\', '"', '\'', '`', '‘', '’', '“', '”':
			return -1
		}
		return r
	}, strings.ToLower(text))
	return strings.Join(strings.Fields(text), " ") + " "
}

// speaksOfMounts also takes a container that cannot be configured for want of a path: that path is one of a mount.
func speaksOfMounts(plain string) bool {
	return containsAny(plain, "mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec")
}

// lookupFailed tells whether the cause is that a path could not be looked up: "stat PATH: no such file or directory".
// Where the mount itself fails instead, the path was there.
func lookupFailed(plain string) bool {
	before, _, found := strings.Cut(plain, ": "+missing)
	if !found {
		return false
	}
	verb, path := lastTwoWords(strings.TrimSuffix(before, " failed"))
	return strings.HasPrefix(path, "/") && slices.Contains([]string{"stat", "lstat", "open", "access"}, verb)
}

// lastTwoWords does without splitting: a path with a space in it is not told apart from two words, and then nothing is
// concluded.
func lastTwoWords(s string) (first, second string) {
	rest, second := cutLast(s)
	_, first = cutLast(rest)
	return first, second
}

func cutLast(s string) (rest, word string) {
	i := strings.LastIndexByte(s, ' ')
	return s[:max(i, 0)], s[i+1:]
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(s, p) })
}
