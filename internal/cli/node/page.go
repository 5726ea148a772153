// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/ui"
)

// maxPlaces bounds the places of a page. The others are like them, or hurt less.
const maxPlaces = 40

// reportPage is the report as a page.
func (v scanView) reportPage(language ui.Language) ui.Page {
	places := placesInOrder(v.Faults)
	p := v.newPage(language)
	p.Sections = append(p.Sections, v.tableSections(language, places)...)
	for _, place := range places[:min(len(places), maxPlaces)] {
		p.Sections = append(p.Sections, v.placeSection(language, place, ""))
	}
	if commands := v.nextCommands(places); len(commands) > 0 {
		p.Sections = append(p.Sections, ui.Section{Heading: language.Word("Next"), Commands: v.typed(commands)})
	}
	if len(v.links) > 0 {
		p.Sections = append(p.Sections, v.linksSection(language))
	}
	if gaps := v.gapLines(); len(gaps) > 0 {
		p.Sections = append(p.Sections, ui.Section{Heading: language.Word("Not looked at"), Text: gaps})
	}
	p.Sections = append(p.Sections, ui.Section{Heading: language.Word("Looked at"), Text: []string{v.coverageText()}})
	return p
}

// reviewPage is all that is known of the named faults, as a page.
func (v scanView) reviewPage(language ui.Language, r *faultReview, now time.Time) ui.Page {
	p := v.newPage(language)
	p.Notes = nil
	if v.from == "" {
		p.Notes = append(p.Notes, v.ageText(r, now))
	}
	for _, f := range r.gone {
		p.Notes = append(p.Notes, f.lineText()+": gone since that scan.")
	}
	for _, place := range r.places {
		p.Sections = append(p.Sections, v.placeSection(language, place, r.unsure[place.faults[0]]))
	}
	return p
}

// newPage has the verdict.
func (v scanView) newPage(language ui.Language) ui.Page {
	v.Screen = terminal.Screen{} // no line is cut
	_, colour, verdict := v.verdict()
	p := ui.Page{Language: language, Title: "kubediag: " + v.Node, Made: v.Time, State: ui.StateOf(colour), Verdict: verdict}
	if v.from != "" {
		p.Notes = append(p.Notes, strings.TrimSuffix(bundleHeading(v.Node, v.Time), "\n"))
	}
	for _, line := range v.hurtLines() {
		p.Notes = append(p.Notes, strings.Join(strings.Fields(line), " "))
	}
	return p
}

// tableSections has the table of the places, if there are any.
func (v scanView) tableSections(language ui.Language, places []faultPlace) []ui.Section {
	if len(places) == 0 {
		return nil
	}
	s := ui.Section{Heading: language.Word("Faults"), Table: ui.Table{Columns: []string{"FAULT", "HURTS", "HEAL", "POD OR DEVICE", "VOLUME"}}}
	for _, p := range places[:min(len(places), maxPlaces)] {
		first := p.faults[0]
		s.Table.Rows = append(s.Table.Rows, ui.Row{
			State: ui.StateOf(verb.Colours[first.Impact]), Link: "#fault-" + strconv.Itoa(p.number),
			Cells: []string{
				fmt.Sprintf("%d. %s", p.number, first.Code), language.Word(verb.Hurts[first.Impact]), language.Word(verb.Heals[first.Heal]), p.subjectText(), p.volumeText(),
			},
			Below: p.reasonText(false),
		})
	}
	if more := len(places) - maxPlaces; more > 0 {
		s.Text = []string{fmt.Sprintf("and %s: %s", verb.Plural(more, "more place", "more places"), v.program.commandLine("kubediag scan"+v.flags))}
	}
	return []ui.Section{s}
}

// placeSection is all that is known of a place. unsure says why a new look could not say whether it is still broken.
func (v scanView) placeSection(language ui.Language, place faultPlace, unsure string) ui.Section {
	first := place.faults[0]
	entry := fault.Known().Entry(first.Code)
	s := ui.Section{
		ID: "fault-" + strconv.Itoa(place.number), Heading: fmt.Sprintf("%d. %s: %s", place.number, first.Code, language.Title(entry)),
		Chain: ui.Chain(first.toFinding()), Facts: []ui.Fact{{Name: "what is wrong", Value: first.Summary}},
	}
	commands := first.Commands
	if unsure != "" {
		s.Text, commands = []string{unsureText(unsure)}, commandsWithoutEffect(commands)
	}
	prevention := first.Prevention
	if language != ui.English {
		prevention = language.Prevention(first.Code)
	}
	facts := append(first.facts(), ui.Fact{Name: "heal", Value: language.Word(verb.Heals[first.Heal])}, ui.Fact{Name: "plan", Value: first.Plan},
		ui.Fact{Name: "repair", Value: language.Repair(entry)}, ui.Fact{Name: "prevention", Value: prevention})
	facts[0].Value = language.Word(facts[0].Value) // hurts
	for _, f := range facts {
		if f.Value != "" {
			s.Facts = append(s.Facts, f)
		}
	}
	explain := fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(first.Code), Effect: fault.EffectNone}
	s.Commands = append(v.typed(commands), v.typed([]fault.Command{explain})...)
	if len(first.Evidence) > 0 {
		s.Folded = append(s.Folded, ui.Folded{Heading: language.Word("Evidence"), Lines: first.Evidence})
	}
	if others := place.faults[1:]; len(others) > 0 {
		same := ui.Folded{Heading: language.Word("The same fault") + fmt.Sprintf(": +%d", len(others))}
		for _, f := range others[:min(len(others), maxShown)] {
			same.Lines = append(same.Lines, f.otherText())
		}
		if more := len(others) - maxShown; more > 0 {
			same.Lines = append(same.Lines, fmt.Sprintf("and %d more: %s", more, v.program.commandLine(fmt.Sprintf("kubediag show%s -v %d", v.flags, place.number))))
		}
		s.Folded = append(s.Folded, same)
	}
	return s
}

// typed are commands as the user's shell takes them.
func (v scanView) typed(commands []fault.Command) (list []fault.Command) {
	for _, c := range commands {
		c.Line = v.program.commandLine(c.Line)
		list = append(list, c)
	}
	return list
}
