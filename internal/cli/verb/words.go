// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package verb

import (
	"fmt"
	"regexp"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Hurts and Heals are the words of tables of faults, Colours the colours of their rows.
var (
	Hurts = map[fault.Impact]string{
		fault.ImpactNow: "now", fault.ImpactTerminating: "terminating", fault.ImpactNextStart: "next start", fault.ImpactDetach: "detach",
		fault.ImpactCleanup: "cleanup",
	}
	Heals = map[fault.Heal]string{
		fault.HealAutomatic: "automatic", fault.HealSafe: "safe", fault.HealDriver: "driver", fault.HealPerson: "person",
	}
	Colours = map[fault.Impact]terminal.Colour{
		fault.ImpactNow: terminal.Red, fault.ImpactTerminating: terminal.Red, fault.ImpactNextStart: terminal.Yellow,
	}
)

// Codes are the codes of the catalogue.
func Codes() (names []string) {
	for _, entry := range fault.Known() {
		names = append(names, string(entry.Code))
	}
	return names
}

// Count is a number of things.
func Count(n int, what string) string { return Plural(n, what, what+"s") }

// Plural is a number of things whose plural is another word.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Distinct returns the texts about the members of a list, each once, in their order. An empty text is left out.
func Distinct[T any](list []T, say func(T) string) (all []string) {
	seen := map[string]bool{"": true}
	for _, one := range list {
		if text := say(one); !seen[text] {
			seen[text] = true
			all = append(all, text)
		}
	}
	return all
}

// Common is the text about all members of a list, or the number of their texts if there are several.
func Common[T any](list []T, say func(T) string, many string) string {
	switch all := Distinct(list, say); len(all) {
	case 0:
		return ""
	case 1:
		return printable.Quoted(all[0])
	default:
		return fmt.Sprintf("%d %s", len(all), many)
	}
}

// Group puts the members of a list together that have one key, in the order of the first of each.
func Group[T any](list []T, key func(T) string) (groups [][]T) {
	at := map[string]int{}
	for _, one := range list {
		i, known := at[key(one)]
		if !known {
			i = len(groups)
			at[key(one)], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], one)
	}
	return groups
}

// Merge groups by the first of the keys that leaves few groups, at most that many; by the last if none does.
func Merge[T any](list []T, most int, keys ...func(T) string) (groups [][]T) {
	for _, key := range keys {
		if groups = Group(list, key); len(groups) <= most {
			break
		}
	}
	return groups
}

// generatedSuffix is how controllers name pods: with five letters, after the hash of a template if there is one, or
// with a number.
var generatedSuffix = regexp.MustCompile(`^(.+?)(?:-[0-9a-f]{8,10}|-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-(?:[bcdfghjklmnpqrstvwxz2456789]{5}|[0-9]{1,5})$`)

// NameStem is the part of a pod's name that its siblings share, as far as the name shows it.
func NameStem(name string) string {
	if parts := generatedSuffix.FindStringSubmatch(name); parts != nil {
		return parts[1]
	}
	return name
}
