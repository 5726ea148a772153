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
)

// maxShown bounds how many faults of one place are listed beside the first.
const maxShown = 20

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
			"user's XDG_RUNTIME_DIR. With --from it shows a row of what a bundle has.\n\n" +
			"Exit status: 0 shown, 2 there is no such fault, or it could not look, 3 the kept scan is not this user's own.",
		Example: "  kubediag show 1\n" +
			"  kubediag show shop/web-0 -o json\n" +
			"  kubediag show --from ticket.tar.gz 1",
		Args:              verb.Takes("N|NAME", 1),
		ValidArgsFunction: verb.CompleteArg(lastPlaces),
	}
	o.nodeOptions.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.pods, "pods", "", "pods in JSON or YAML (\"-\": stdin), in place of those of the last scan")
	cmd.Flags().BoolVarP(&o.verbose, "verbose", "v", false, "with the evidence of each fault of the row")
	o.addFrom(cmd)
	o.out = addFormat(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		if err := o.validateSource(); err != nil {
			return err
		}
		r, err := o.reviewFaults(cmd.Context(), cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if *o.out == verb.JSON {
			return render.WriteJSON(w, shownFaults{r.report.SchemaVersion, r.report.Node, r.report.Time, allFaults(r.places)})
		}
		return verb.Write(w, r.options.newView(w, r.report).reviewText(r, time.Now()))
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

// reviewText is all that is known of the faults that were asked for.
func (v scanView) reviewText(r *faultReview, now time.Time) string {
	var b strings.Builder
	if v.from != "" {
		b.WriteString(bundleHeading(v.Node, v.Time))
	} else {
		age := max(0, now.Sub(v.Time)).Round(time.Second)
		text := "scan of " + v.Time.Local().Format(time.DateTime) + ", " + age.String() + " ago"
		if age > oldAge {
			text = "OLD: " + text
		}
		if len(r.unsure) == 0 {
			text += ", and looked at again now"
		}
		b.WriteString(v.Wrap("", printable.Quoted(v.Node)+", "+text+". To look again: "+v.program.commandLine("kubediag scan"+v.flags), 0))
	}
	for _, f := range r.gone {
		b.WriteString("\n" + v.Marked("", "✓", terminal.Green, f.lineText()+": gone since that scan."))
	}
	for _, p := range r.places {
		b.WriteString("\n" + v.showPlace(p, r.unsure[p.faults[0]]))
	}
	return v.Text(b.String())
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
	for _, f := range others[:min(len(others), maxShown)] {
		text := f.Pod.shortName()
		if f.Container != "" {
			text += ", container " + f.Container
		}
		b.WriteString(v.Wrap("  ", printable.Quoted(text+": "+f.Mount.Point), 4))
	}
	if more := len(others) - maxShown; more > 0 {
		b.WriteString(v.Wrap("  ", fmt.Sprintf("and %d more: %s", more, v.program.commandLine(fmt.Sprintf("kubediag show%s -v %d", v.flags, place.number))), 4))
	}
	commands, heading := slices.Clone(place.faults[0].Commands), "By hand, on this node:"
	if unsure != "" {
		b.WriteString("\n" + v.Marked("", "!", terminal.Yellow, "Whether it is still there is not known: "+printable.Quoted(unsure)+
			". Commands that change something are left out."))
		commands = commandsWithoutEffect(commands)
	}
	if v.from != "" {
		heading = "On node " + printable.Quoted(v.Node) + ":"
	}
	commands = append(commands,
		fault.Command{Purpose: "cause, proof, repair by hand, prevention", Line: "kubediag explain " + string(place.faults[0].Code)})
	b.WriteString("\n" + heading + "\n" + v.commandLines(commands))
	return b.String()
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
	held, holder := "", found.Holder
	if found.ofDevice() {
		held = found.Mount.Device
	}
	if found.Details.Driver != "" { // it has a line of its own
		holder = ""
	}
	for _, line := range [][2]string{
		{"hurts", verb.Hurts[found.Impact]}, {"pod", found.Pod.String()}, {"workload", found.Details.Workload.String()}, {"container", found.Container},
		{"volume", found.volumeText()}, {"device", held}, {"mount", found.Mount.Point}, {"driver", found.Details.Driver}, {"holder", holder},
	} {
		p.Row(2, line[0], line[1])
	}
	label := "why"
	for _, e := range found.Evidence {
		p.Row(2, label, e)
		label = ""
	}
	p.Row(2, "heal", verb.Heals[found.Heal])
	p.Row(2, "plan", found.Plan)
	addRemedy(p, entry, v.program)
	return p.String()
}

// addRemedy adds the remedy of a fault.
func addRemedy(p *render.Page, entry fault.Entry, program programName) {
	p.Row(2, "repair", entry.Repair)
	p.Paste(2, "runbook    "+program.commandLine("kubediag explain "+string(entry.Code)))
}
