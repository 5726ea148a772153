// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/printable"
)

// maxShown bounds how many faults of one place are listed beside the first.
const maxShown = 20

// NewShowCommand makes the verb show. It looks for kubelets in the process file system at proc; empty: /proc.
func NewShowCommand(proc string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "show N|NAME",
		Short: "Show one fault of the last scan: evidence, plan and commands",
		Long: "show explains one row of the last kubediag scan of this user that found faults: what proves the fault, what\n" +
			"kubediag would do about it, and what a person can type. N is the number of the row. NAME is the name of a pod, a\n" +
			"volume or a device, or the code of a fault.\n\n" +
			"If no scan was kept, it scans first. A scan is kept in /run/kubediag, or in the user's XDG_RUNTIME_DIR.\n\n" +
			"Exit status: 0 shown, 2 there is no such fault, or it could not look, 3 the kept scan is not this user's own.",
		Example: "  kubediag show 1\n" +
			"  kubediag show shop/web-0 -o json",
		Args:              verb.Takes("N|NAME", 1),
		ValidArgsFunction: verb.CompleteArg(lastPlaces),
	}
	cmd.Flags().BoolVarP(&all, "verbose", "v", false, "with the evidence of each fault of the row")
	out := addFormat(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		report, err := lastScan()
		if errors.Is(err, fs.ErrNotExist) {
			o := scanOptions{nodeOptions: nodeOptions{proc: proc}, orphanAge: orphan.DefaultMinimumAge}
			report, err = o.scanNode(cmd.Context(), nil)
		}
		if err != nil {
			return err
		}
		found, err := report.placesNamed(args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if *out == jsonFormat {
			return writeJSON(w, shownFaults{report.SchemaVersion, report.Node, report.Time, allFaults(found)})
		}
		v := scanView{Screen: terminal.New(w, os.Getenv), scanReport: report, program: thisProgram(), verbose: all}
		return verb.Write(w, v.showPlaces(found, time.Now()))
	})
	return cmd
}

// shownFaults is what the verb show gives as JSON.
type shownFaults struct {
	SchemaVersion int          `json:"schemaVersion"`
	Node          string       `json:"node"`
	Time          time.Time    `json:"time"`
	Faults        []*scanFault `json:"faults"`
}

func allFaults(places []faultPlace) (all []*scanFault) {
	for _, p := range places {
		all = append(all, p.faults...)
	}
	return all
}

// placesNamed are the places that a number or a name means.
func (r *scanReport) placesNamed(name string) ([]faultPlace, error) {
	places := placesInOrder(r.Faults)
	when := fmt.Sprintf("the scan of %s", r.Time.Local().Format(time.DateTime))
	if len(places) == 0 {
		return nil, fmt.Errorf("%q: %s found no fault", name, when)
	}
	found := slices.DeleteFunc(slices.Clone(places), func(p faultPlace) bool {
		return strconv.Itoa(p.number) != name && !slices.ContainsFunc(p.faults, func(f *scanFault) bool { return f.hasName(name) })
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("%q: %s has no such fault; its numbers are 1 to %d, see kubediag scan", name, when, len(places))
	}
	return found, nil
}

// hasName reports whether a name is one of the fault's.
func (f *scanFault) hasName(name string) bool {
	if name == "" {
		return false
	}
	names := []string{f.Volume, f.Pod.UID, f.Pod.Name, string(f.Code), f.Details.Device, f.deviceText(), f.Mount.Point, f.Details.Workload.Name}
	if f.Pod.Name != "" {
		names = append(names, f.Pod.Namespace+"/"+f.Pod.Name)
	}
	return slices.Contains(names, name)
}

// showPlaces is all that is known of places.
func (v scanView) showPlaces(places []faultPlace, now time.Time) string {
	var b strings.Builder
	age := max(0, now.Sub(v.Time)).Round(time.Second)
	b.WriteString(v.Wrap("", printable.Quoted(v.Node)+", scan of "+v.Time.Local().Format(time.DateTime)+", "+age.String()+" ago. "+
		"To look again: "+v.program.commandLine("kubediag scan"), 0))
	for _, p := range places {
		b.WriteString("\n" + v.showPlace(p))
	}
	return v.Text(b.String())
}

func (v scanView) showPlace(place faultPlace) string {
	var b strings.Builder
	b.WriteString(v.evidenceText(place.faults[0]))
	others := place.faults[1:]
	if v.verbose {
		for _, f := range others {
			b.WriteString("\n" + v.evidenceText(f))
		}
		others = nil
	}
	if len(others) > 0 {
		b.WriteString("\n" + v.Wrap("", "The same fault, "+verb.Count(len(others), "time")+" more:", 0))
	}
	for _, f := range others[:min(len(others), maxShown)] {
		text := f.Pod.shortName()
		if f.Container != "" {
			text += ", container " + f.Container
		}
		b.WriteString(v.Wrap("  ", printable.Quoted(text+": "+f.Mount.Point), 4))
	}
	if more := len(others) - maxShown; more > 0 {
		b.WriteString(v.Wrap("  ", fmt.Sprintf("and %d more: %s", more, v.program.commandLine(fmt.Sprintf("kubediag show -v %d", place.number))), 4))
	}
	commands := append(slices.Clone(place.faults[0].Commands),
		fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(place.faults[0].Code)})
	b.WriteString("\nBy hand, on this node:\n" + v.commandLines(commands))
	return b.String()
}

// evidenceText is a fault with all that is known of it.
func (v scanView) evidenceText(found *scanFault) string {
	var text strings.Builder
	entry, _ := fault.Lookup(found.Code)
	fmt.Fprintf(&text, "%d. %s (%s): %s\n", found.Place, found.Code, entry.Severity, entry.Title)
	held := ""
	if found.Code == fault.HeldDevice {
		held = found.Mount.Device
	}
	for _, line := range append([][2]string{
		{"hurts", verb.Hurts[found.Impact]}, {"pod", found.Pod.String()}, {"workload", found.Details.Workload.String()}, {"container", found.Container},
		{"volume", found.Volume}, {"device", held}, {"mount", found.Mount.Point}, {"driver", found.Details.Driver}, {"holder", found.holderText()},
	}, found.reasonLines()...) {
		writeRow(&text, 2, line[0], line[1])
	}
	writeRow(&text, 2, "heal", verb.Heals[found.Heal])
	writeRow(&text, 2, "plan", found.Plan)
	for _, line := range remedyLines(entry, v.program) {
		writeRow(&text, 2, line[0], line[1])
	}
	return text.String()
}

func (f *scanFault) reasonLines() (lines [][2]string) {
	label := "why"
	for _, e := range f.Evidence {
		lines = append(lines, [2]string{label, e})
		label = ""
	}
	return lines
}

// holderText is who holds the device. The driver of a volume has a line of its own.
func (f *scanFault) holderText() string {
	if f.Details.Driver != "" {
		return ""
	}
	return f.Holder
}

// remedyLines are what to do about a fault, as lines of text.
func remedyLines(entry fault.Entry, p programName) [][2]string {
	return [][2]string{{"repair", entry.Repair}, {"runbook", p.commandLine("kubediag explain " + string(entry.Code))}}
}
