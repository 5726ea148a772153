// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Composer makes the lines of an object again, from the catalogue. Its text comes from no object.
type Composer struct {
	catalogue Catalogue

	mu        sync.Mutex
	templates map[Code][]Command
}

// NewComposer makes one for the faults of a catalogue.
func NewComposer(c Catalogue) *Composer {
	return &Composer{catalogue: c, templates: map[Code][]Command{}}
}

// Words in the place of those that a finding has. No kernel gives a process or a connection these numbers.
var (
	templatePod      = Pod{Namespace: "template-namespace", Name: "template-pod", UID: "template-uid"}
	templateWorkload = Workload{"Template", "template-workload"}
	templateNames    = Workload{namesAgain, "template-workload"}
)

const (
	templatePath   = "/template-path"
	templateDevice = "template-device"
	templatePID    = 1<<30 + 1
	templateMinor  = "1073741826"
)

// Compose returns the command for each line that advice about such a fault can have on any node, and leaves all others out. The purpose is
// the catalogue's. Pod, workload and device are those of the finding. It takes a path or the number of a process from a written
// line, as one word of the line that it returns.
func (c *Composer) Compose(about Finding, written []Command) (own []Command) {
	templates := c.templatesOf(about.Code)
	for _, w := range written {
		var best *Command
		values := valuesOf(about, words(w.Line))
		for _, t := range templates {
			command, ok := fill(t, values)
			if !ok || command.Line != w.Line {
				continue
			}
			if best == nil || command.Purpose == w.Purpose {
				best = &command
			}
		}
		if best != nil {
			own = append(own, *best)
		}
	}
	return own
}

// valuesOf are the words of a finding in the place of those of a template, with a path and a process that a line names. An empty one may not stand in
// a line.
func valuesOf(about Finding, named []string) map[string]string {
	minor, _ := strings.CutPrefix(about.Mount.Device, "0:")
	if _, err := strconv.ParseUint(minor, 10, 32); err != nil {
		minor = ""
	}
	values := map[string]string{
		templatePod.Namespace: nameOnly(about.Pod.Namespace), templatePod.Name: nameOnly(about.Pod.Name), templatePod.UID: nameOnly(about.Pod.UID),
		templateDevice: "", templateMinor: minor, templatePath: "", strconv.Itoa(templatePID): "", templateWorkload.String(): "", templateNames.String(): "",
	}
	workload := templateWorkload
	if about.Details.Workload.Kind == namesAgain {
		workload = templateNames
	}
	values[workload.String()] = about.Details.Workload.String()
	if isWord(about.Details.Device) && about.Details.Device != "" {
		values[templateDevice] = Quote(about.Details.Device)
	}
	for _, word := range named {
		if path.IsAbs(word) && path.Clean(word) == word && isWord(word) && values[templatePath] == "" {
			values[templatePath] = Quote(word)
		}
		if pid, err := strconv.ParseInt(word, 10, 32); err == nil && pid > 1 && strconv.FormatInt(pid, 10) == word {
			values[strconv.Itoa(templatePID)] = word
		}
	}
	return values
}

// fill puts words into a template. It reports whether there is a word for each place.
func fill(t Command, values map[string]string) (Command, bool) {
	var pairs []string
	for place, value := range values {
		if value == "" && (strings.Contains(t.Line, place) || strings.Contains(t.Purpose, place)) {
			return Command{}, false
		}
		pairs = append(pairs, place, value)
	}
	replacer := strings.NewReplacer(pairs...)
	t.Line, t.Purpose = replacer.Replace(t.Line), replacer.Replace(t.Purpose)
	return t, true
}

// nameOnly is a text if it can be the name of an object; else empty.
func nameOnly(s string) string {
	if !isWord(s) || Quote(s) != s || strings.ContainsAny(s, "/:") {
		return ""
	}
	return s
}

// templatesOf are the commands of advice about the faults of a code, with words in the place of those that a finding has. Those whose purpose says
// why no other line can be pasted come last.
func (c *Composer) templatesOf(code Code) []Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, known := c.catalogue.Lookup(code)
	if list := c.templates[code]; list != nil || !known {
		return list
	}
	var list []Command
	for _, f := range variants(entry) {
		for _, enter := range []Enter{EnterNothing, EnterFirst, EnterNever} {
			for _, command := range c.catalogue.caseOf(f, Caller{Enter: enter}).commands() {
				if !slices.Contains(list, command) {
					list = append(list, command)
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Command) int {
		return strings.Count(a.Purpose, notPasted) - strings.Count(b.Purpose, notPasted)
	})
	c.templates[code] = list
	return list
}

// variants are the findings of a fault that there can be: at each place, with each repair, in each state; with and without the name of the pod, its
// controller and a process; and with words that no line can have.
func variants(entry Entry) (all []Finding) {
	for _, place := range append(Places(), PlaceUnknown) {
		for _, repair := range []ActionKind{"", Replace, Unmount, RemoveDirectory, Detach} {
			for _, state := range []PodState{PodWanted, PodDeleting, PodEnded} {
				f := Finding{Code: entry.Code, Pod: templatePod, Mount: Mount{Point: templatePath, FSType: "fuse", Device: "0:" + templateMinor}, Details: Details{
					Place: place, Repair: repair, PodState: state, Workload: templateWorkload, Device: templateDevice, Path: templatePath,
					Daemon: &Process{PID: templatePID, State: ProcessStopped}, HeldBy: &Process{PID: templatePID},
				}}
				bare := f
				bare.Pod, bare.Details.Workload, bare.Details.Reason = Pod{UID: templatePod.UID}, Workload{}, ReasonHasData
				names := f
				names.Details.Workload = templateNames
				single := f
				single.Details.Workload = Workload{}
				hidden := f
				hidden.Mount.Point, hidden.Details.Path, hidden.Details.Device = "\x00", "\x00", "\x00"
				lost := hidden
				lost.Pod = bare.Pod
				all = append(all, f, names, bare, single, hidden, lost)
			}
		}
	}
	return all
}

// words are those of a line in which each word is plain or has been quoted by Quote; nil if it has others.
func words(line string) (list []string) {
	for rest := line; rest != ""; {
		var word strings.Builder
		for rest != "" && rest[0] != ' ' {
			switch end := strings.IndexByte(rest[1:], '\''); {
			case rest[0] == '\'' && end < 0:
				return nil
			case rest[0] == '\'':
				word.WriteString(rest[1 : 1+end])
				rest = rest[2+end:]
			case rest[0] == '\\' && len(rest) > 1:
				word.WriteByte(rest[1])
				rest = rest[2:]
			default:
				word.WriteByte(rest[0])
				rest = rest[1:]
			}
		}
		list, rest = append(list, word.String()), strings.TrimPrefix(rest, " ")
	}
	return list
}
