// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/pipeline"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
	"kubediag.org/kubediag/internal/store"
)

// NewDiagnoseCommand makes the verb diagnose. It looks for kubelets in the process file system at proc; empty: /proc.
func NewDiagnoseCommand(proc string) *cobra.Command {
	o := diagnoseOptions{scan: scanOptions{nodeOptions: nodeOptions{proc: proc}, orphanAge: orphan.DefaultMinimumAge}}
	cmd := &cobra.Command{
		Use:   "diagnose",
		Short: "Run an OperationSet on this node, as a Diagnosis would",
		Long: "diagnose runs one of the OperationSets that ship, with the code of the agent and a store in memory: about a pod, a\n" +
			"device, or the whole node. It prints what each operation found, and the plan of a repair. It changes nothing, unless\n" +
			"--heal is given: then it prints the plan, and carries it out. It needs no API server.\n\n" +
			"Pods are those of the container runtime, or of the file of --pods.\n\n" +
			"With --from it judges the evidence of a bundle, on any machine. It runs no OperationSet then, and makes no plan.\n\n" +
			"Exit status: 0 no fault, or all are healed; 1 there are faults; 2 could not look; 3 refused: an agent works on it.",
		Example: "  kubediag diagnose\n" +
			"  kubediag diagnose --pod shop/web-0\n" +
			"  kubediag diagnose --pod shop/web-0 --heal\n" +
			"  kubediag diagnose --operation-set held-device-op-set --device /dev/rbd3 -o yaml",
		Args: verb.NoArgs,
	}
	flags := cmd.Flags()
	o.scan.nodeOptions.addFlags(flags)
	flags.StringVar(&o.set, "operation-set", v1.DefaultOperationSet, "OperationSet to run: "+strings.Join(operations.Sets(), ", "))
	flags.StringVar(&o.scan.pod, "pod", "", "pod to look at: NAMESPACE/NAME (default: the whole node)")
	flags.StringVar(&o.container, "container", "", "only this container of the pod")
	flags.StringVar(&o.device, "device", "", "device to look at: its path, the kernel's name of it, or major:minor")
	flags.StringVar(&o.scan.pods, "pods", "", "file of pods in JSON or YAML (\"-\": standard input)")
	flags.DurationVar(&o.scan.orphanAge, "orphan-minimum-age", orphan.DefaultMinimumAge,
		"how long a pod's directory must be unchanged before the pod counts\nas gone, 5m to 720h")
	flags.BoolVar(&o.heal, "heal", false, "carry out the plan")
	flags.BoolVarP(&o.scan.verbose, "verbose", "v", false, "with the evidence of each fault")
	o.output = verb.Text
	verb.AddFormat(cmd, &o.output, "how to write: text, or the Diagnosis as json or yaml", "is none of text, json, yaml", verb.Text, verb.JSON, verb.YAML)
	o.change.addRoot(cmd)
	o.scan.addFrom(cmd, "operation-set", "container", "device", "heal")
	verb.CompleteFlag(cmd, "operation-set", operations.Sets)
	verb.CompleteFlag(cmd, "pod", lastPods)
	verb.CompleteFlag(cmd, "container", func() []string { return nil })
	verb.CompleteFlag(cmd, "device", blockDevices)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, _ []string) error { return o.runDiagnose(cmd) })
	return cmd
}

// diagnoseOptions are the flags of diagnose.
type diagnoseOptions struct {
	scan      scanOptions
	change    changeOptions
	set       string
	device    string
	container string
	heal      bool
	output    verb.Format
}

func (o *diagnoseOptions) validate() error {
	if err := o.scan.validate(); err != nil {
		return err
	}
	namespace, name, named := strings.Cut(o.scan.pod, "/")
	switch {
	case !slices.Contains(operations.Sets(), o.set):
		return fmt.Errorf("--operation-set=%q: is none of %s", o.set, strings.Join(operations.Sets(), ", "))
	case o.scan.pod != "" && (!named || namespace == "" || name == ""):
		return fmt.Errorf("--pod=%q: must be NAMESPACE/NAME", o.scan.pod)
	case o.container != "" && o.scan.pod == "":
		return fmt.Errorf("--container=%q: needs --pod", o.container)
	case o.scan.pod != "" && o.device != "":
		return errors.New("--device: cannot be with --pod")
	case o.scan.from != "":
		return nil
	case !o.heal:
		return cmp.Or(o.change.check(), checkPrivileges("it has to see the mounts of all processes"))
	}
	return o.change.validate()
}

// spec is that of the Diagnosis.
func (o *diagnoseOptions) spec() v1.DiagnosisSpec {
	spec := v1.DiagnosisSpec{OperationSet: o.set, Parameters: map[string]string{}}
	if namespace, name, ok := strings.Cut(o.scan.pod, "/"); ok {
		spec.PodReference = &v1.PodReference{Namespace: namespace, Name: name, Container: o.container}
	}
	if o.device != "" {
		spec.Parameters[device.ParamDevice] = o.device
	}
	return spec
}

func (o diagnoseOptions) runDiagnose(cmd *cobra.Command) error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.scan.from != "" {
		return o.printBundled(cmd)
	}
	ctx := cmd.Context()
	o.scan.readAhead = !o.heal
	at, err := o.scan.newSite(ctx, cmd.InOrStdin())
	if err != nil {
		return err
	}
	engine, err := newEngine(ctx, at.local.Node, at.specs, o.scan.orphanAge)
	if err != nil {
		return err
	}
	var gaps []mountstate.Gap
	if o.scan.pod == "" && o.device == "" {
		if gaps, err = engine.listPods(ctx); err != nil {
			return err
		}
	}
	if namespace, name, named := strings.Cut(o.scan.pod, "/"); named && o.output == verb.Text { // else the Diagnosis says it, in each of its parts
		if _, err := engine.pods.Pod(ctx, namespace, name); errors.Is(err, kubelet.ErrPodNotFound) {
			return fmt.Errorf("get pod %s: %w", o.scan.pod, err)
		}
	}
	story := o.story(cmd.OutOrStdout())
	diagnosis, err := o.diagnose(ctx, engine, story)
	if err != nil && diagnosis != nil {
		err = errors.Join(err, o.printDiagnosis(cmd, diagnosis, story))
	}
	if err != nil {
		return err
	}
	return o.finish(cmd, diagnosis, story, gaps)
}

// finish writes the Diagnosis and the gaps of the look, and returns the error with which the verb ends.
func (o diagnoseOptions) finish(cmd *cobra.Command, d *v1.Diagnosis, s *diagnosisPrinter, gaps []mountstate.Gap) error {
	if err := o.printDiagnosis(cmd, d, s); err != nil {
		return err
	}
	p := &render.Page{Screen: s.view.Screen}
	addGaps(p, gaps)
	if err := verb.Write(s.out, s.view.Text(p.String())); err != nil {
		return err
	}
	switch d.Status.Outcome {
	case v1.OutcomeHealed, v1.OutcomeNoFault, v1.OutcomeCompleted:
		return unseenError(gaps)
	case v1.OutcomePlanned, v1.OutcomeFaultFound:
		return verb.ErrFaults
	}
	return errors.New(diagnosisMessage(d))
}

// story makes the printer of the Diagnosis for people. With JSON or YAML it prints nothing.
func (o diagnoseOptions) story(w io.Writer) *diagnosisPrinter {
	s := &diagnosisPrinter{view: scanView{Screen: terminal.New(w, os.Getenv), program: thisProgram(), verbose: o.scan.verbose}, out: w}
	if o.output != verb.Text {
		s.out = io.Discard
	}
	return s
}

// diagnose runs the set up to its plan, and carries that out if it is to.
func (o diagnoseOptions) diagnose(ctx context.Context, engine *localEngine, story *diagnosisPrinter) (*v1.Diagnosis, error) {
	diagnosis, planned, err := engine.planDiagnosis(ctx, o.spec(), story)
	if err != nil || !o.heal || diagnosis.Status.Outcome != v1.OutcomePlanned {
		return diagnosis, err
	}
	story.printText(render.PlanText(story.view.Screen, render.Actions(diagnosis, false), story.view.verbose))
	root, err := openRepairRoot(o.change.dataRoot)
	if err != nil {
		return diagnosis, err
	}
	underway, err := agentRepairs(root.dir)
	if err != nil {
		return diagnosis, err
	}
	why := agentRefusal(underway, func(r pipeline.Repair) bool { return overlapsPlan(r.Actions, planned) })
	if why != "" {
		return diagnosis, fmt.Errorf("%w: %s", verb.ErrRefused, why)
	}
	return engine.repairDiagnosis(ctx, o.spec(), diagnosis.Status.Plan.Hash, root, story)
}

// printDiagnosis writes the Diagnosis as JSON or YAML, or its conclusion as text.
func (o diagnoseOptions) printDiagnosis(cmd *cobra.Command, diagnosis *v1.Diagnosis, story *diagnosisPrinter) error {
	switch output := cmd.OutOrStdout(); o.output {
	case verb.JSON:
		return render.WriteJSON(output, diagnosis)
	case verb.YAML:
		text, err := store.YAML(diagnosis)
		if err != nil {
			return err
		}
		return verb.Write(output, printable.Text(string(text)))
	}
	return verb.Write(story.out, story.view.Text(story.conclusionText(diagnosis, commandAsTyped(cmd, story.view.program, "--heal"))))
}

// diagnosisPrinter prints a Diagnosis as it goes on.
type diagnosisPrinter struct {
	pipeline.Discard // the report follows at once, and without an API server nothing is approved

	view  scanView
	out   io.Writer
	lines int                    // that were printed
	ended map[v1.ActionPhase]int // actions of the operation that runs
}

var _ pipeline.Observer = (*diagnosisPrinter)(nil)

// printText prints a text; the end says whether the output could be written.
func (p *diagnosisPrinter) printText(text string) {
	p.lines += strings.Count(text, "\n")
	_ = verb.Write(p.out, p.view.Text(text))
}

// OperationEnded prints how an operation went.
func (p *diagnosisPrinter) OperationEnded(_ *v1.Diagnosis, run v1.OperationRun) {
	for _, phase := range slices.Sorted(maps.Keys(p.ended)) {
		if more := p.ended[phase] - maxActionLines; more > 0 && p.view.Terminal {
			p.printText(fmt.Sprintf("  %-12s and %s more\n", phase, verb.Count(more, "action")))
		}
	}
	p.ended = nil
	text := run.Operation
	if run.CompletionTime != nil && run.StartTime != nil {
		text += fmt.Sprintf(", %d ms", run.CompletionTime.Sub(run.StartTime.Time).Milliseconds())
	}
	if run.Message != "" {
		text += ": " + run.Message
	}
	p.printText(p.view.Wrap(fmt.Sprintf("%-14s ", cmp.Or(operationWords[run.Reason], string(run.Phase))), printable.Quoted(text), 15))
}

// operationWords take the place of the phase of an operation with such a reason.
var operationWords = map[string]string{v1.ReasonNothingRepaired: "Left alone", v1.ReasonNotJudged: "Not judged"}

// maxActionLines bounds the actions of one operation that a person sees end in the same phase.
const maxActionLines = 3

// ActionEnded prints the phase of an action and its message.
func (p *diagnosisPrinter) ActionEnded(_ *v1.Diagnosis, _ string, a pipeline.ActionEnd) {
	if p.ended == nil {
		p.ended = map[v1.ActionPhase]int{}
	}
	if p.ended[a.Phase]++; p.view.Terminal && p.ended[a.Phase] > maxActionLines {
		return
	}
	text := a.Kind + " " + a.Target
	if a.Message != "" {
		text += ": " + a.Message
	}
	p.printText(p.view.Wrap(fmt.Sprintf("  %-12s ", a.Phase), printable.Quoted(text), 15))
}

// conclusionText is the report: faults, the plan, the result, and the command that carries the plan out.
func (p *diagnosisPrinter) conclusionText(diagnosis *v1.Diagnosis, heal string) string {
	var faults []string
	for _, f := range diagnosis.Status.Faults {
		faults = append(faults, "\n"+p.faultText(f))
	}
	var text strings.Builder
	summary, command := diagnosis.Status.Summary, ""
	if plan := diagnosis.Status.Plan; diagnosis.Status.Outcome == v1.OutcomePlanned {
		loss := "nothing would be lost"
		if !plan.Lossless {
			loss = "could be lost: " + strings.Join(plan.Loss, "; ")
		}
		// The summary of a plan mentions an object of the API server, which is not there.
		summary = fmt.Sprintf("%s found, %s planned; %s", verb.Count(len(diagnosis.Status.Faults), "fault"), verb.Count(int(plan.Actions), "action"), loss)
		command = "\nNothing was changed. To carry out the plan:\n  " + heal + "\n"
		text.WriteString("\n" + render.PlanText(p.view.Screen, render.Actions(diagnosis, false), p.view.verbose))
		planned := map[string]bool{} // codes with an action, or that were named
		for _, a := range diagnosisActions(diagnosis) {
			planned[a.Fault] = true
		}
		for _, f := range diagnosis.Status.Faults {
			if !planned[f.Code] {
				planned[f.Code] = true
				text.WriteString(p.view.Marked("", "!", terminal.Yellow, "No action repairs "+f.Code+" now. See "+p.view.program.commandLine("kubediag explain "+f.Code)))
			}
		}
	}
	text.WriteString("\n" + p.view.Wrap(string(diagnosis.Status.Outcome)+": ", printable.Quoted(summary), 2) + command)
	others := strings.Count(text.String(), "\n") + p.lines
	return p.view.FitParts(faults, others, func(n int) string {
		return "\n" + p.view.Wrap("", fmt.Sprintf("and %s more: pipe the output into less, or see -o json", verb.Count(n, "fault")), 2)
	}) + text.String()
}

// faultText is one of the Diagnosis.
func (p *diagnosisPrinter) faultText(found v1.Fault) string {
	page := &render.Page{Screen: p.view.Screen}
	page.Line(0, "%s (%s)", found.Code, strings.ToLower(string(found.State)))
	if found.Pod != nil {
		page.Row(2, "pod", scanPod{string(found.Pod.UID), found.Pod.Namespace, found.Pod.Name}.String())
	}
	page.Row(2, "container", found.Container)
	page.Row(2, "volume", found.Volume)
	if found.Mount != nil {
		page.Row(2, "mount", found.Mount.Point)
	}
	page.Row(2, "holder", found.Holder)
	evidence := found.Evidence
	if !p.view.verbose {
		evidence = evidence[:min(len(evidence), 1)]
	}
	for i, e := range evidence {
		page.Row(2, map[bool]string{true: "why"}[i == 0], e)
	}
	return page.String()
}
