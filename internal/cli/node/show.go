// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
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
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/ui"
)

// maxShown bounds how many faults of one place a page lists beside the first, and maxShownLines how many a screen of 40 lines does.
const (
	maxShown      = 20
	maxShownLines = 14
)

// NewShowCommand makes the verb show. It looks for kubelets in the process file system at proc; empty: /proc.
func NewShowCommand(proc string) *cobra.Command {
	o := scanOptions{nodeOptions: nodeOptions{proc: proc}, orphanAge: orphan.DefaultMinimumAge}
	cmd := &cobra.Command{
		Use:   "show N|NAME",
		Short: "Show one fault of the last scan: evidence, plan and commands",
		Long: "show explains one row of the last kubediag scan of this user: what proves the fault, what kubediag would do about\n" +
			"it, and what a person can type. N is the number of the row. NAME is the name of a pod, a volume or a device, or\n" +
			"the code of a fault.\n\n" +
			"It looks again, in the same place and with the same file of pods. Commands that change something are printed only\n" +
			"for a fault that is still there.\n\n" +
			"If no scan was kept, or it was of another --kubelet-root, it scans first. A scan is kept in /run/kubediag, or in the\n" +
			"user's XDG_RUNTIME_DIR. With --from it shows a row of a bundle.\n\n" +
			"Exit status: 0 shown, 2 there is no such fault, or it could not look, 3 the kept scan is not this user's own.",
		Example: "  kubediag show 1\n" +
			"  kubediag show shop/web-0 -o json\n" +
			"  kubediag show --from ticket.tar.gz 1 -o html > fault.html",
		Args:              verb.Takes("N|NAME", 1),
		ValidArgsFunction: verb.CompleteArg(lastPlaces),
	}
	o.nodeOptions.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.pods, "pods", "", "pods in JSON or YAML (\"-\": stdin), in place of those of the last scan")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "with the evidence of each fault of the row")
	o.addFrom(cmd)
	o.addPage(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		if err := o.validateSource(); err != nil {
			return err
		}
		r, err := o.reviewFaults(cmd.Context(), cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		view := r.options.newView(w, r.report)
		switch *o.out {
		case verb.JSON:
			return render.WriteJSON(w, shownFaults{r.report.SchemaVersion, r.report.Node, r.report.Time, allFaults(r.places)})
		case verb.HTML:
			return ui.Write(w, view.asPages(o.language).reviewPage(r, time.Now()))
		}
		return verb.Write(w, r.reviewText(view, time.Now()))
	})
	return cmd
}

// shownFaults is the JSON of the verb show.
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

// hasName reports whether a name is one of the fault's. The name that the pods of a workload share is: the table prints it.
func (f *scanFault) hasName(name string) bool {
	if name == "" {
		return false
	}
	names := []string{f.Volume, f.Details.PersistentVolume, f.Pod.UID, f.Pod.Name, string(f.Code), f.Details.Device, f.deviceText(), f.Mount.Point, f.Details.Workload.Name}
	if f.Pod.Name != "" {
		names = append(names, f.Pod.Namespace+"/"+f.Pod.Name, f.Pod.Namespace+"/"+verb.NameStem(f.Pod.Name))
	}
	return slices.Contains(names, name)
}

// oldAge is the age from which on a scan is called old.
const oldAge = time.Minute

// reviewText is all that is known of the named faults.
func (r *faultReview) reviewText(v scanView, now time.Time) string {
	var b strings.Builder
	if v.from != "" {
		b.WriteString(bundleHeading(v.report.Node, v.report.Time))
	} else {
		b.WriteString(v.Wrap("", r.ageText(v, now), 0))
	}
	for _, f := range r.gone {
		b.WriteString("\n" + v.Marked("", "✓", terminal.Green, f.lineText()+": gone since that scan."))
	}
	for _, p := range r.places {
		b.WriteString("\n" + v.showPlace(p, r.unsure[p.faults[0]]))
	}
	return v.Text(b.String())
}

// ageText says of when the scan is.
func (r *faultReview) ageText(v scanView, now time.Time) string {
	age := max(0, now.Sub(v.report.Time)).Round(time.Second)
	text := "scan of " + v.report.Time.Local().Format(time.DateTime) + ", " + age.String() + " ago"
	if age > oldAge {
		text = "OLD: " + text
	}
	if len(r.unsure) == 0 {
		text += ", and looked at again now"
	}
	return printable.Quoted(v.report.Node) + ", " + text + ". To look again: " + v.program.commandLine("kubediag scan"+v.flags)
}

// showPlace is all that is known of a place. unsure says why a new look could not say whether it is still broken.
func (v scanView) showPlace(place faultPlace, unsure string) string {
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
	for _, f := range others[:min(len(others), maxShownLines)] {
		b.WriteString(v.Wrap("  ", printable.Quoted(f.otherText()), 4))
	}
	if more := len(others) - maxShownLines; more > 0 {
		b.WriteString(v.Wrap("  ", fmt.Sprintf("and %d more: %s", more, v.program.commandLine(fmt.Sprintf("kubediag show%s -v %d", v.flags, place.number))), 4))
	}
	commands, heading := slices.Clone(place.faults[0].Commands), "By hand, on this node:"
	if unsure != "" {
		b.WriteString("\n" + v.Marked("", "!", terminal.Yellow, unsureText(unsure)))
		commands = commandsWithoutEffect(commands)
	}
	if v.from != "" {
		heading = "On node " + printable.Quoted(v.report.Node) + ":"
	}
	commands = append(commands,
		fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(place.faults[0].Code)})
	b.WriteString("\n" + heading + "\n" + v.commandLines(commands))
	return b.String()
}

// otherText is the fault in a list of faults that are the same.
func (f *scanFault) otherText() string {
	text := f.Pod.shortName()
	if f.Container != "" {
		text += ", container " + f.Container
	}
	return text + ": " + f.Mount.Point
}

// unsureText says that a new look does not know whether a fault is still there.
func unsureText(why string) string {
	return "Whether it is still there is not known: " + why + ". Commands that change something are left out."
}

// removeEffects leaves out the commands that change something.
func (r *scanReport) removeEffects() {
	for i := range r.Faults {
		r.Faults[i].Commands = commandsWithoutEffect(r.Faults[i].Commands)
	}
}

// commandsWithoutEffect are the commands that only show something.
func commandsWithoutEffect(list []fault.Command) []fault.Command {
	return slices.DeleteFunc(slices.Clone(list), func(c fault.Command) bool { return c.Effect != fault.EffectNone })
}

// evidenceText is a fault with all that is known of it.
func (v scanView) evidenceText(found *scanFault) string {
	p := &render.Page{Screen: v.Screen}
	entry := fault.Known().Entry(found.Code)
	p.Line(0, "%d. %s (%s): %s", found.Place, found.Code, entry.Severity, entry.Title)
	for _, fact := range found.facts() {
		p.Row(2, fact.Name, fact.Value)
	}
	label := "why"
	for _, e := range found.Evidence {
		p.Row(2, label, e)
		label = ""
	}
	p.Row(2, "heal", verb.Heals[found.Heal])
	p.Row(2, "plan", found.Plan)
	p.Row(2, "prevention", found.Prevention)
	addRemedy(p, entry, v.program)
	return p.String()
}

// facts are the names of all that the fault is about. A name without a value is not known.
func (f *scanFault) facts() []ui.Fact {
	held, holder := "", f.Holder
	if f.ofDevice() {
		held = f.Mount.Device
	}
	if f.Details.Driver != "" { // it has a line of its own
		holder = ""
	}
	return []ui.Fact{
		{Name: "hurts", Value: verb.Hurts[f.Impact]}, {Name: "pod", Value: f.Pod.String()}, {Name: "workload", Value: f.Details.Workload.String()},
		{Name: "container", Value: f.Container}, {Name: "volume", Value: f.volumeText()}, {Name: "device", Value: held},
		{Name: "mount", Value: f.Mount.Point}, {Name: "driver", Value: f.Details.Driver}, {Name: "holder", Value: holder},
	}
}

// addRemedy adds the remedy of a fault.
func addRemedy(p *render.Page, entry fault.Entry, program programName) {
	p.Row(2, "repair", entry.Repair)
	p.Paste(2, "runbook    "+program.commandLine("kubediag explain "+string(entry.Code)))
}
