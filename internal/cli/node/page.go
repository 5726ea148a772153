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

// scanPages makes pages of a report.
type scanPages struct {
	view     scanView
	language ui.Language
}

// asPages are for people with a browser, in a language.
func (v scanView) asPages(language ui.Language) scanPages {
	v.Screen = terminal.Screen{} // no line is cut
	return scanPages{v, language}
}

// reportPage is the report as a page.
func (s scanPages) reportPage() ui.Page {
	places := placesInOrder(s.view.report.Faults)
	p := s.newPage()
	if len(places) > 0 {
		section := ui.Section{Heading: s.language.Word("Faults"), Table: ui.Table{Columns: []string{"FAULT", "HURTS", "HEAL", "POD OR DEVICE", "VOLUME"}}}
		for _, place := range places[:min(len(places), maxPlaces)] {
			first := place.faults[0]
			section.Table.Rows = append(section.Table.Rows, ui.Row{
				State: ui.StateOf(verb.Colours[first.Impact]), Link: "#fault-" + strconv.Itoa(place.number),
				Cells: []string{
					fmt.Sprintf("%d. %s", place.number, first.Code), s.language.Word(verb.Hurts[first.Impact]), s.language.Word(verb.Heals[first.Heal]), place.subjectText(), place.volumeText(),
				},
				Below: place.reasonText(false),
			})
		}
		if more := len(places) - maxPlaces; more > 0 {
			section.Text = []string{fmt.Sprintf("and %s: %s", verb.Plural(more, "more place", "more places"), s.view.program.commandLine("kubediag scan"+s.view.flags))}
		}
		p.Sections = append(p.Sections, section)
	}
	for _, place := range places[:min(len(places), maxPlaces)] {
		p.Sections = append(p.Sections, s.placeSection(place, ""))
	}
	if commands := s.view.nextCommands(places); len(commands) > 0 {
		p.Sections = append(p.Sections, ui.Section{Heading: s.language.Word("Next"), Commands: s.typed(commands)})
	}
	if len(s.links()) > 0 {
		p.Sections = append(p.Sections, s.linksSection())
	}
	if gaps := s.view.gapLines(); len(gaps) > 0 {
		p.Sections = append(p.Sections, ui.Section{Heading: s.language.Word("Not looked at"), Text: gaps})
	}
	p.Sections = append(p.Sections, ui.Section{Heading: s.language.Word("Looked at"), Text: []string{s.view.report.Looked.coverageText()}})
	return p
}

// reviewPage is all that is known of the named faults, as a page.
func (s scanPages) reviewPage(r *faultReview, now time.Time) ui.Page {
	p := s.newPage()
	p.Notes = nil
	if s.view.from == "" {
		p.Notes = append(p.Notes, r.ageText(s.view, now))
	}
	for _, f := range r.gone {
		p.Notes = append(p.Notes, f.lineText()+": gone since that scan.")
	}
	for _, place := range r.places {
		p.Sections = append(p.Sections, s.placeSection(place, r.unsure[place.faults[0]]))
	}
	return p
}

// newPage has the verdict.
func (s scanPages) newPage() ui.Page {
	_, colour, verdict := s.view.verdict()
	report := s.view.report
	p := ui.Page{Language: s.language, Title: "kubediag: " + report.Node, Made: report.Time, State: ui.StateOf(colour), Verdict: verdict}
	if s.view.from != "" {
		p.Notes = append(p.Notes, strings.TrimSuffix(bundleHeading(report.Node, report.Time), "\n"))
	}
	for _, line := range report.Verdict.hurtLines(s.view.Screen) {
		p.Notes = append(p.Notes, strings.Join(strings.Fields(line), " "))
	}
	return p
}

// placeSection is all that is known of a place. unsure says why a new look could not say whether it is still broken.
func (s scanPages) placeSection(place faultPlace, unsure string) ui.Section {
	first := place.faults[0]
	entry := fault.Known().Entry(first.Code)
	section := ui.Section{
		ID: "fault-" + strconv.Itoa(place.number), Heading: fmt.Sprintf("%d. %s: %s", place.number, first.Code, s.language.Title(entry)),
		Chain: ui.Chain(first.toFinding()), Facts: []ui.Fact{{Name: "what is wrong", Value: first.Summary}},
	}
	commands := first.Commands
	if unsure != "" {
		section.Text, commands = []string{unsureText(unsure)}, commandsWithoutEffect(commands)
	}
	prevention := first.Prevention
	if s.language != ui.English {
		prevention = s.language.Prevention(first.Code)
	}
	facts := append(first.facts(), ui.Fact{Name: "heal", Value: s.language.Word(verb.Heals[first.Heal])}, ui.Fact{Name: "plan", Value: first.Plan},
		ui.Fact{Name: "repair", Value: s.language.Repair(entry)}, ui.Fact{Name: "prevention", Value: prevention})
	facts[0].Value = s.language.Word(facts[0].Value) // hurts
	for _, f := range facts {
		if f.Value != "" {
			section.Facts = append(section.Facts, f)
		}
	}
	explain := fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(first.Code), Effect: fault.EffectNone}
	section.Commands = append(s.typed(commands), s.typed([]fault.Command{explain})...)
	if len(first.Evidence) > 0 {
		section.Folded = append(section.Folded, ui.Folded{Heading: s.language.Word("Evidence"), Lines: first.Evidence})
	}
	if others := place.faults[1:]; len(others) > 0 {
		same := ui.Folded{Heading: s.language.Word("The same fault") + fmt.Sprintf(": +%d", len(others))}
		shown, more := ui.First(others, maxShown, ": "+s.view.program.commandLine(fmt.Sprintf("kubediag show%s -v %d", s.view.flags, place.number)))
		for _, f := range shown {
			same.Lines = append(same.Lines, f.otherText())
		}
		same.Lines = append(same.Lines, more...)
		section.Folded = append(section.Folded, same)
	}
	return section
}

// typed are commands as the user's shell takes them.
func (s scanPages) typed(commands []fault.Command) (list []fault.Command) {
	for _, c := range commands {
		c.Line = s.view.program.commandLine(c.Line)
		list = append(list, c)
	}
	return list
}
