// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/render"
)

// NewRecoverCommand makes the verb recover. It looks for kubelets in the process file system at proc; empty: /proc.
func NewRecoverCommand(proc string) *cobra.Command {
	o := recoverOptions{scan: scanOptions{nodeOptions: nodeOptions{proc: proc}, orphanAge: orphan.DefaultMinimumAge}}
	cmd := &cobra.Command{
		Use:   "recover [N|NAME...]",
		Short: "Repair faults of this node: print the plan, ask, repair, prove it",
		Long: "recover looks for faults as scan does, and repairs those that can be repaired with nothing lost. It prints the plan\n" +
			"first and asks. Then it repairs with the code of the agent: the same checks, the same journal, the same proof. At the\n" +
			"end it scans again, and prints the result for each fault. It needs no API server.\n\n" +
			"N and NAME mean rows of the last scan of this user, as for kubediag show. Without them, it is every fault.\n\n" +
			"It leaves alone what an agent of this node repairs, and waits while another program repairs. If neither\n" +
			"the kubelet nor the container runtime knows a pod, its spec has to be given by --pods.\n\n" +
			"With -o json it asks nothing: without --yes it writes the plan and changes nothing.\n\n" +
			"Exit status: 0 no fault is left, 1 faults are left, 2 could not look, 3 refused: nothing was changed.",
		Example: "  kubediag recover --dry-run\n" +
			"  kubediag recover 4 5\n" +
			"  kubediag recover --yes shop/web-0\n" +
			"  kubectl get pods -A -o json | kubediag recover --pods - --yes",
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return lastPlaces(), cobra.ShellCompDirectiveNoFileComp // for each of several
		},
	}
	o.scan.addSelection(cmd)
	o.change.addFlags(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		if err := o.scan.validate(); err != nil {
			return err
		}
		if len(args) > 0 && (len(o.scan.only) > 0 || o.scan.pod != "") {
			return fmt.Errorf("%q: cannot be with --only or --pod", args)
		}
		if err := o.change.validate(); err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if *o.change.out == verb.Text {
			_, err := o.recoverFaults(cmd, args, w)
			return err
		}
		rec, err := o.recoverFaults(cmd, args, io.Discard) // programs get one object at its end
		if rec == nil {
			return err
		}
		return cmp.Or(render.WriteJSON(w, rec.recoverReportOf()), err)
	})
	return cmd
}

// changeOptions are the flags of verbs that change something.
type changeOptions struct {
	yes, dryRun, verbose bool
	dataRoot             string
	out                  *verb.Format
}

func (o *changeOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and change nothing")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "with the evidence of each fault")
	o.addRoot(cmd)
	o.out = addFormat(cmd)
}

func (o *changeOptions) addRoot(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.dataRoot, "data-root", defaultDataRoot, "directory of the agent: where journals are kept, and where it is seen what an agent repairs")
}

func (o *changeOptions) validate() error {
	if err := o.check(); err != nil {
		return err
	}
	return checkPrivileges("it changes mounts, and has to see all of them to prove what it did")
}

// check refuses flags that are wrong.
func (o *changeOptions) check() error {
	if o.yes && o.dryRun {
		return errors.New("--yes: cannot be with --dry-run")
	}
	if err := checkAbsolute(o.dataRoot); err != nil {
		return fmt.Errorf("--data-root=%q: %w", o.dataRoot, err)
	}
	return nil
}

// checkPrivileges refuses callers that may not see and change every mount. why names the purpose.
func checkPrivileges(why string) error {
	if _, err := sys.Procfs(); err != nil {
		return fmt.Errorf("see mounts of other processes: %w: %s", err, verb.MountProc)
	}
	if os.Geteuid() == 0 && !processesHidden() {
		return nil
	}
	return fmt.Errorf("%s: %s", why, asRootRemedy)
}

// recoverOptions are the flags of recover.
type recoverOptions struct {
	scan   scanOptions
	change changeOptions
}

// recoverFaults looks, plans, repairs and proves. It writes the text for people to output. The recovery is not nil once the
// first scan has ended.
func (o recoverOptions) recoverFaults(cmd *cobra.Command, args []string, output io.Writer) (*recovery, error) {
	ctx := cmd.Context()
	at, err := o.scan.newSite(ctx, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	report, err := o.scan.scanSite(ctx, at)
	if err != nil {
		return nil, err
	}
	c, err := o.chooseFaults(report, args)
	if err != nil {
		return nil, err
	}
	view := o.scan.newView(output, report)
	view.verbose = o.change.verbose
	rec := &recovery{view: view, gone: c.gone, targets: append(targetsOf(c.chosen), c.unjudged...), hadSpecs: c.last.Report.Looked.PodSpecs.Given}
	rec.again = func(place int) string {
		words := []string{"kubediag", cmd.Name()}
		for _, flag := range givenFlags(cmd) {
			if !strings.HasPrefix(flag, "--pods=") && !strings.HasPrefix(flag, "'--pods=") {
				words = append(words, flag)
			}
		}
		return getPods + view.program.commandLine(strings.Join(append(words, "--pods=pods.json", strconv.Itoa(place)), " "))
	}
	switch {
	case report.Looked.Gaps.Interrupted:
		return rec, cmp.Or(verb.Write(output, view.reportText()), report.finalError()) // what is known
	case len(rec.targets) == 0 && len(args) > 0:
		return rec, cmp.Or(verb.Write(output, view.Text(rec.goneLines())), unseenError(report.Looked.Gaps.NotLookedAt))
	case len(rec.targets) == 0:
		if report.hasUnknowns() { // a fault may be there that was not seen
			err = report.finalError()
		}
		return rec, cmp.Or(verb.Write(output, view.Text(rec.nothingToRepair())), err)
	}
	if rec.engine, err = newEngine(ctx, at.local.Node, at.specs, o.scan.orphanAge); err != nil {
		return rec, err
	}
	rec.planAll(ctx)
	if rec.countAt(progressPlanned) > 0 {
		rec.next = commandAsTyped(cmd, view.program, "--yes", args...)
	}
	if err := cmp.Or(verb.Write(output, view.Text(rec.planText(view.verbose))), ctx.Err()); err != nil {
		return rec, err
	}
	if err := rec.confirmPlan(cmd, o.change); err != nil || rec.countAt(progressPlanned) == 0 || o.change.dryRun {
		return rec, rec.finalError(err, len(args) > 0)
	}
	if err := rec.repairAll(ctx, o.change.dataRoot); err != nil {
		return rec, err
	}
	if err = rec.verifyByScan(ctx, o.scan, at); err == nil {
		err = rec.finalError(nil, len(args) > 0)
	}
	return rec, cmp.Or(verb.Write(output, view.Text(rec.resultText())), err)
}

// faultChoice has the faults that the arguments of recover mean.
type faultChoice struct {
	// chosen are the faults that are there, with the numbers that the user knows. gone are those of the last scan that are
	// gone.
	chosen, gone []*scanFault
	// unjudged are those of the last scan of which this one cannot say whether they are there.
	unjudged []*repairTarget
	last     *keptScan // that has given the numbers
}

// chooseFaults finds out which faults the arguments mean. Without arguments it is every fault.
func (o recoverOptions) chooseFaults(report *scanReport, args []string) (*faultChoice, error) {
	last, err := lastScan()
	switch {
	case len(args) == 0 && err == nil && report.keepNumbers(last.Report): // the person has read them
		last = &keptScan{report, o.scan.keptFlags()}
	case len(args) == 0 || errors.Is(err, fs.ErrNotExist):
		last = &keptScan{report, o.scan.keptFlags()}
		saveLastScan(last.Report, last.Flags)
	case err != nil:
		return nil, err
	case last.Report.Looked.Kubelet.Root != report.Looked.Kubelet.Root:
		return nil, fmt.Errorf("%q: the last scan was of kubelet root %q, and this is %q: scan again with the same flags", args,
			last.Report.Looked.Kubelet.Root, report.Looked.Kubelet.Root)
	}
	c := &faultChoice{last: last}
	if len(args) == 0 {
		for i := range report.Faults {
			c.chosen = append(c.chosen, &report.Faults[i])
		}
		return c, nil
	}
	now, seen := report.byKey(), map[fault.Key]bool{}
	for _, arg := range args {
		places, err := last.Report.placesNamed(arg)
		if _, number := strconv.Atoi(arg); number != nil {
			if found, unknown := report.placesNamed(arg); unknown == nil { // names need no earlier scan
				places, err = append(places, found...), nil
			}
		}
		if err != nil {
			return nil, err
		}
		for _, f := range allFaults(places) {
			if at := f.key(); !seen[at] {
				seen[at] = true
				c.add(report, f, now[at])
			}
		}
	}
	slices.SortStableFunc(c.chosen, func(a, b *scanFault) int { return a.Place - b.Place })
	return c, nil
}

// add adds a fault that is meant. found is the same fault in this scan; nil: the scan does not have it.
func (c *faultChoice) add(report *scanReport, meant, found *scanFault) {
	why := ""
	if found == nil {
		why = report.whyUnjudged(meant, c.last.Report.Looked.PodSpecs.Given)
	}
	switch {
	case found != nil:
		found.Place = meant.Place
		c.chosen = append(c.chosen, found)
	case why != "":
		c.unjudged = append(c.unjudged, &repairTarget{faults: []*scanFault{meant}, progress: progressNotJudged, reason: why})
	default:
		c.gone = append(c.gone, meant)
	}
}

// getPods has a cluster's client write the pods into a file, and whatever reads it behind it.
const getPods = "kubectl get pods -A -o json > pods.json; "

// commandAsTyped is the command as the user may type it again, with other arguments.
func commandAsTyped(cmd *cobra.Command, p programName, extra string, args ...string) string {
	words := append([]string{"kubediag", cmd.Name(), extra}, givenFlags(cmd)...)
	for _, arg := range args {
		words = append(words, fault.Quote(arg))
	}
	line := p.commandLine(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
	if pods := cmd.Flags().Lookup("pods"); pods != nil && pods.Value.String() == "-" {
		line = "kubectl get pods -A -o json | " + line
	}
	return line
}
