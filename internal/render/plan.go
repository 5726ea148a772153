// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package render writes plans for people, at any width. Changes that are alike are one line with a count: a plan takes the
// room of its kinds of changes, not of its mounts.
//
// It knows faults and the actions of the API, and neither nodes nor clusters.
package render

import (
	"fmt"
	"slices"
	"strings"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/printable"
)

// Action is a change of a plan.
type Action struct {
	v1.Action

	// Replaces is set where something takes the place of an unmounted mount.
	Replaces bool
}

// Actions are those of a Diagnosis. replaces is whether something takes the place of the mounts that are unmounted.
func Actions(d *v1.Diagnosis, replaces bool) (all []Action) {
	for _, run := range d.Status.Operations {
		for _, a := range run.Actions {
			all = append(all, Action{a, replaces && a.Kind == string(fault.Unmount)})
		}
	}
	return all
}

// actionWords name an action, with one target and with many.
var actionWords = map[fault.ActionKind]struct{ word, one, many string }{
	fault.Unmount:               {"unmount", "mount", "mounts"},
	fault.Replace:               {"replace", "mount", "mounts"},
	fault.Abort:                 {"abort", "connection", "connections"},
	fault.RemoveContainerRecord: {"remove the record of", "container", "containers"},
	fault.Evict:                 {"evict", "pod", "pods"},
	fault.Detach:                {"detach", "device", "devices"},
	fault.RemoveDirectory:       {"remove", "directory", "directories"},
	fault.RemoveFile:            {"remove", "file", "files"},
}

func (a Action) kind() fault.ActionKind {
	if a.Replaces {
		return fault.Replace
	}
	return fault.ActionKind(a.Kind)
}

// text is the action with its one target.
func (a Action) text() string {
	text := actionWords[a.kind()].word
	if text == "" {
		text = a.Kind
	}
	text += " " + a.Target
	if m := a.Mount; m != nil && m.MountInfoID != 0 {
		text += fmt.Sprintf(" (mount %d of mount namespace %d)", m.MountInfoID, m.Namespace)
	}
	return text
}

// maxAlike is how many actions of one kind are written one by one, and how many losses of one plan.
const maxAlike = 3

// PlanText lists the changes and their losses. Actions that are not many have the reason why they are safe.
func PlanText(s terminal.Screen, actions []Action, verbose bool) string {
	var b strings.Builder
	var counted []Action
	for _, alike := range verb.Group(actions, func(a Action) string { return string(a.kind()) }) {
		if !verbose && len(alike) > maxAlike {
			counted = append(counted, alike...)
			continue
		}
		for _, a := range alike {
			b.WriteString(s.Wrap("   would ", printable.Quoted(a.text()), 11))
			if a.Safety != "" {
				b.WriteString(s.Wrap("     safe: ", printable.Quoted(a.Safety), 11))
			}
			if a.Loss != "" {
				b.WriteString(s.Wrap("     lost: ", printable.Quoted(a.Loss), 11))
			}
		}
	}
	for _, alike := range verb.Group(counted, func(a Action) string { return string(a.kind()) }) {
		b.WriteString(s.Wrap("   would ", countText(alike), 11))
	}
	if losses := verb.Distinct(counted, func(a Action) string { return a.Loss }); len(losses) > 0 {
		b.WriteString(s.Wrap("     lost: ", printable.Quoted(Few(losses, "; ")), 11))
	}
	return b.String()
}

// countText is the action with the number of its targets.
func countText(alike []Action) string {
	words := actionWords[alike[0].kind()]
	if words.word == "" {
		return printable.Quoted(fmt.Sprintf("%s of %d", alike[0].Kind, len(alike)))
	}
	return words.word + " " + verb.Plural(len(alike), words.one, words.many)
}

// Results say which actions were done and which have failed; many that are alike are one line. reason is the end of a line.
func Results(s terminal.Screen, actions []Action, reason func(message string) string) string {
	var b strings.Builder
	for _, alike := range verb.Group(actions, func(a Action) string { return string(a.kind()) + " " + string(a.Phase) }) {
		mark, colour := "✓", terminal.Green
		if alike[0].Phase == v1.ActionFailed {
			mark, colour = "✗", terminal.Red
		}
		if len(alike) > maxAlike {
			messages := verb.Distinct(alike, func(a Action) string { return a.Message })
			b.WriteString(s.Marked("  ", mark, colour, countText(alike)+reason(Few(messages, "; or "))))
			continue
		}
		for _, a := range alike {
			b.WriteString(s.Marked("  ", mark, colour, a.text()+reason(a.Message)))
		}
	}
	return b.String()
}

// changesHeading stands above the lines that the hash of a plan covers.
const changesHeading = "The hash of the plan covers exactly these lines:"

// maxChanges bounds these lines, unless the reader wants all: they are those of a few actions.
const maxChanges = 8

// Changes are the lines that the hash of a plan covers, as the status has them. An agent of an older release gives none.
func Changes(s terminal.Screen, lines []string, verbose bool) string {
	switch {
	case len(lines) == 0:
		return ""
	case len(lines) > maxChanges && !verbose:
		return s.Wrap("", fmt.Sprintf("The hash of the plan covers %d lines.", len(lines)), 2)
	}
	text := changesHeading + "\n"
	for _, line := range lines {
		text += s.Wrap("  ", printable.Quoted(line), 4)
	}
	return text
}

// Folded reports whether PlanText leaves something out.
func Folded(actions []Action) bool {
	return slices.ContainsFunc(verb.Group(actions, func(a Action) string { return string(a.kind()) }), func(alike []Action) bool {
		return len(alike) > maxAlike
	})
}

// Few are the first texts of a list, and how many others there are.
func Few(texts []string, separator string) string {
	text := strings.Join(texts[:min(len(texts), maxAlike)], separator)
	if more := len(texts) - maxAlike; more > 0 {
		text += fmt.Sprintf("%sand %d more", separator, more)
	}
	return text
}
