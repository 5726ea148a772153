// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
)

// Values of --heal.
const (
	healAsk   = "ask"
	healAuto  = "auto"
	healNever = "never"
)

// runOptions are the flags of the verb run.
type runOptions struct {
	*connection
	container, heal, plan string
	artifacts, evict      bool
	verbose               bool
	patience              time.Duration
	out                   *verb.Format
}

func newRunCommand(conn *connection) *cobra.Command {
	options := &runOptions{connection: conn}
	cmd := &cobra.Command{
		Use:   "run TARGET",
		Short: "Diagnose a pod, a workload, a node, a claim or a device, show the plan, and heal",
		Long: "run has the agent of the node look for every mount fault of TARGET:\n" + targetForms + ".\n" +
			"It changes nothing: it ends with a plan. On a terminal it then asks, and repairs exactly that plan. If the plan no longer fits by\n" +
			"then, nothing is repaired. For a claim, it diagnoses each pod that uses it; of a workload, the first 3 pods, those that are not\n" +
			"ready before the others.\n\n" +
			"Exit status: 0 no fault, or healed; 1 faults; 2 it could not look; 3 it was refused.",
		Example: "  kubectl kubediag run pod/web-7d9f8b6c5-x2x9k -n shop\n  kubectl kubediag run node/worker-7 --heal=never\n" +
			"  kubectl kubediag run deploy/web -n shop\n  kubectl kubediag run pvc/data -n shop\n  kubectl kubediag run rbd3@worker-7",
		Args:              verb.Takes("TARGET", 1),
		ValidArgsFunction: conn.completeTargets,
		RunE:              func(cmd *cobra.Command, args []string) error { return options.runTarget(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVarP(&options.container, "container", "c", "", "only this container of the pod")
	f.StringVar(&options.heal, "heal", healAsk, "what to do with a plan: ask (without a terminal: never), auto (repair it if nothing can be lost), never")
	f.StringVar(&options.plan, "plan-hash", "", "repair the plan with this hash, and no other, without a question")
	f.BoolVar(&options.artifacts, "artifacts", false, "copy the mounts of the pod, or of the node, and the Pod into the Diagnosis, for report --artifacts")
	f.BoolVar(&options.evict, "evict", false, "let the plan evict the pod if a volume of it cannot be repaired: takes the right to create pods/eviction")
	f.BoolVarP(&options.verbose, "verbose", "v", false, "show each step and each action of a plan, why it is safe, and the lines of its hash")
	f.DurationVar(&options.patience, "timeout", 5*time.Minute, "how long to wait for a Diagnosis, which goes on without us")
	options.out = addFormat(cmd, verb.JSON, verb.YAML)
	verb.CompleteFlag(cmd, "heal", func() []string { return []string{healAsk, healAuto, healNever} })
	return cmd
}

var planHashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (o *runOptions) validate() error {
	switch {
	case !slices.Contains([]string{healAsk, healAuto, healNever}, o.heal):
		return fmt.Errorf("--heal=%q: must be %s, %s or %s", o.heal, healAsk, healAuto, healNever)
	case o.plan != "" && !planHashPattern.MatchString(o.plan):
		return fmt.Errorf("--plan-hash=%q: must be the 64 hexadecimal digits of a plan", o.plan)
	case o.patience < time.Second:
		return fmt.Errorf("--timeout=%s: must be at least 1s", o.patience)
	}
	return nil
}

func (o *runOptions) runTarget(cmd *cobra.Command, argument string) error {
	if err := o.validate(); err != nil {
		return err
	}
	apiClient, err := o.newClient()
	if err != nil {
		return err
	}
	targets, err := targetFinder{apiClient, o.container}.find(cmd.Context(), argument)
	if err != nil {
		return err
	}
	if o.plan != "" && len(targets) > 1 {
		return fmt.Errorf("--plan-hash: %s means %d pods, and a plan is for one: name the pod", argument, len(targets))
	}
	if o.evict && targets[0].spec.PodReference == nil {
		return fmt.Errorf("--evict: %s is no pod: name a pod, a workload or a claim", targets[0].name)
	}
	var worst error
	for i, t := range targets {
		if i > 0 {
			if _, err := fmt.Fprintln(o.storyWriter(cmd)); err != nil {
				return err
			}
		}
		r := &targetRunner{options: o, api: apiClient, cmd: cmd, target: t,
			screen: terminal.New(o.storyWriter(cmd), os.Getenv), out: o.storyWriter(cmd)}
		switch err := r.runDiagnosis(cmd.Context()); {
		case err == nil:
		case errors.Is(err, verb.ErrFaults) && worst == nil:
			worst = err
		case !errors.Is(err, verb.ErrFaults):
			return err
		}
		if t.left > 0 {
			text := fmt.Sprintf("Not looked at: %s of the same workload. Name one, as pod/NAME.", verb.Count(t.left, "pod"))
			if err := r.printText(r.screen.Text(r.screen.Marked("", "!", terminal.Yellow, text))); err != nil {
				return err
			}
		}
	}
	return worst
}

// storyWriter is the output for people: the error output if the output is for a program.
func (o *runOptions) storyWriter(cmd *cobra.Command) io.Writer {
	if *o.out != formatText {
		return cmd.ErrOrStderr()
	}
	return cmd.OutOrStdout()
}

// targetRunner diagnoses one target.
type targetRunner struct {
	options *runOptions
	api     *client
	screen  terminal.Screen
	cmd     *cobra.Command
	target  diagnosisTarget
	out     io.Writer
	shown   bool      // a plan
	events  podEvents // of the pod, once they were read
}

// newStory is a story that asks for the Events of the pod at its end.
func (r *targetRunner) newStory(ctx context.Context, d *v1.Diagnosis) *progressPrinter {
	s := newStory(r.screen, d)
	s.verbose, s.planShown = r.options.verbose, r.shown
	s.hints = func(e podEvents) []terminal.Hint { return e.hints(r.api) }
	s.askEvents = func(d *v1.Diagnosis) podEvents {
		r.events = r.api.mountEvents(ctx, d)
		return r.events
	}
	return s
}

func (r *targetRunner) runDiagnosis(ctx context.Context) error {
	if r.options.plan != "" {
		return r.repairPlan(ctx, r.options.plan)
	}
	diagnosis, err := r.diagnose(ctx, v1.ModePlan, "")
	if err != nil {
		return err
	}
	if diagnosis.Status.Outcome != v1.OutcomePlanned || diagnosis.Status.Plan == nil {
		return r.finalError(diagnosis)
	}
	hash := diagnosis.Status.Plan.Hash
	if err := checkChanges(diagnosis.Status.Plan, hash); err != nil {
		return err
	}
	agreed, err := r.planAgreed(diagnosis)
	if r.shown = true; err != nil {
		return err
	}
	if agreed {
		return r.repairPlan(ctx, hash)
	}
	then := "Nothing was changed. To repair exactly this:"
	if planIsHeld(diagnosis.Status.Plan) {
		then = "Nothing was changed. To repair exactly this, once it is not held:"
	}
	args := []string{"run", r.target.argument, "-n", r.target.namespace}
	if r.options.container != "" {
		args = append(args, "-c", r.options.container)
	}
	if r.options.evict {
		args = append(args, "--evict")
	}
	line := r.api.commandLine(append(args, "--plan-hash="+hash)...)
	if err := r.printText(r.screen.Text("\n" + then + "\n  " + line + "\n")); err != nil {
		return err
	}
	if err := r.finalError(diagnosis); r.options.heal != healAuto || !planIsHeld(diagnosis.Status.Plan) {
		return err
	}
	return fmt.Errorf("%w: the repair is held", verb.ErrRefused)
}

// planAgreed reports whether the plan is to be repaired.
func (r *targetRunner) planAgreed(d *v1.Diagnosis) (bool, error) {
	switch plan := d.Status.Plan; {
	case r.options.heal == healNever, planIsHeld(plan): // the plan says why
		return false, nil
	case r.options.heal == healAuto && !plan.Lossless:
		return false, r.printText(r.screen.Marked("", "!", terminal.Yellow, "Not repaired by itself: something could be lost."))
	case r.options.heal == healAuto:
		return true, nil
	}
	story := newStory(r.screen, d)
	story.verbose = r.options.verbose
	return agreesOnTerminal(r.cmd, r.out, "Heal?", story.details(d))
}

func (r *targetRunner) repairPlan(ctx context.Context, hash string) error {
	d, err := r.diagnose(ctx, v1.ModeRecover, hash)
	if err != nil {
		return err
	}
	return r.finalError(d)
}

// diagnose creates a Diagnosis and follows it to its end.
func (r *targetRunner) diagnose(ctx context.Context, mode v1.DiagnosisMode, hash string) (*v1.Diagnosis, error) {
	diagnosis := r.target.newDiagnosis(mode, hash)
	if r.options.artifacts {
		diagnosis.Spec.Artifacts = v1.ArtifactsInStatus
	}
	if r.options.evict {
		diagnosis.Spec.Parameters = map[string]string{v1.ParamEvictAllowed: "true"}
	}
	if err := r.api.server.Create(ctx, diagnosis); err != nil {
		return nil, err
	}
	story := r.newStory(ctx, diagnosis)
	if err := r.printText(story.headline(fmt.Sprintf("%s, Diagnosis %s/%s", r.target.name, diagnosis.Namespace, diagnosis.Name))); err != nil {
		return nil, err
	}
	const idle = 10 * time.Second
	defer time.AfterFunc(idle, func() {
		if !story.hasStarted.Load() {
			fmt.Fprintf(r.cmd.ErrOrStderr(), "kubediag: nothing has happened for %s: look at the manager with %s\n", idle, r.api.commandLine("doctor"))
		}
	}).Stop()
	limited, cancel := context.WithTimeout(ctx, r.options.patience)
	defer cancel()
	err := r.followDiagnosis(limited, r.newWatcher(diagnosis), story, diagnosis)
	switch {
	case ctx.Err() != nil:
		return nil, r.stillRunningError(diagnosis, "interrupted")
	case errors.Is(err, context.DeadlineExceeded):
		return nil, r.stillRunningError(diagnosis, fmt.Sprintf("it has not ended within %s", r.options.patience))
	case err != nil:
		return nil, err
	}
	return diagnosis, nil
}

// followDiagnosis shows the changes of a Diagnosis until it has ended, and updates diagnosis.
func (r *targetRunner) followDiagnosis(ctx context.Context, watcher *objectWatcher, story *progressPrinter, diagnosis *v1.Diagnosis) error {
	see := func(now objectChange) error {
		got, ok := now.object.(*v1.Diagnosis)
		switch {
		case !ok || got.UID != diagnosis.UID:
			return nil
		case now.kind == watch.Deleted:
			return fmt.Errorf("diagnosis %s/%s was deleted before it ended: it is cancelled", diagnosis.Namespace, diagnosis.Name)
		}
		*diagnosis = *got
		if err := r.printText(story.newsText(diagnosis)); err != nil {
			return err
		}
		if diagnosis.Ended() {
			return errDone
		}
		return nil
	}
	items, err := watcher.listFirst(ctx)
	if err == nil && len(items) == 0 {
		err = see(objectChange{watch.Deleted, diagnosis})
	}
	for i := 0; err == nil && i < len(items); i++ {
		err = see(objectChange{watch.Added, items[i]})
	}
	if err == nil {
		err = watcher.followChanges(ctx, see)
	}
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// stillRunningError says how to look at a Diagnosis that goes on.
func (r *targetRunner) stillRunningError(diagnosis *v1.Diagnosis, why string) error {
	text := r.screen.Hints([]terminal.Hint{
		{Line: r.api.commandLine("get", diagnosis.Name, "-n", diagnosis.Namespace, "-w"), Purpose: "follows it"},
		{Line: r.api.commandLine("report", diagnosis.Name, "-n", diagnosis.Namespace), Purpose: "shows all of it"},
		{Line: r.api.commandLine("cancel", diagnosis.Name, "-n", diagnosis.Namespace), Purpose: "ends it"},
	}, nil)
	if err := r.printText("\nThe Diagnosis goes on:\n" + text); err != nil {
		return err
	}
	return fmt.Errorf("diagnosis %s/%s: %s", diagnosis.Namespace, diagnosis.Name, why)
}

// finalError writes the Diagnosis in the format for programs, if there is one, and returns the error with which the verb
// ends.
func (r *targetRunner) finalError(diagnosis *v1.Diagnosis) error {
	if *r.options.out != formatText {
		if err := newPrinter(*r.options.out, "Diagnosis").printObject(r.cmd.OutOrStdout(), diagnosis); err != nil {
			return err
		}
	}
	if c := refusal(diagnosis); c != nil {
		return fmt.Errorf("%w: %s", verb.ErrRefused, c.Message)
	}
	complete := meta.FindStatusCondition(diagnosis.Status.Conditions, v1.ConditionComplete)
	switch outcome := diagnosis.Status.Outcome; {
	case outcome == v1.OutcomeFaultFound, outcome == v1.OutcomePlanned:
		return verb.ErrFaults
	case outcome == v1.OutcomeNoFault && r.events.unread != nil:
		return errors.New("the Events of the pod were not looked at")
	case outcome == v1.OutcomeNoFault && r.events.last != nil:
		return verb.ErrFaults
	case diagnosis.Status.Phase == v1.DiagnosisSucceeded, outcome == v1.OutcomeNoFault, outcome == v1.OutcomeHealed:
		return nil
	case complete != nil:
		return fmt.Errorf("diagnosis %s/%s: %s: %s", diagnosis.Namespace, diagnosis.Name, complete.Reason, complete.Message)
	}
	return fmt.Errorf("diagnosis %s/%s: %s", diagnosis.Namespace, diagnosis.Name, diagnosis.Status.Summary)
}

func (r *targetRunner) printText(text string) error { return verb.Write(r.out, text) }

// agreesOnTerminal asks on a terminal. Without a terminal, or after an interruption, the answer is no.
func agreesOnTerminal(cmd *cobra.Command, out io.Writer, question string, details func() string) (bool, error) {
	if !terminal.New(out, os.Getenv).Terminal {
		return false, nil
	}
	yes, _, err := verb.Ask(cmd.Context(), cmd.InOrStdin(), out, question, details)
	if cmd.Context().Err() != nil {
		return false, verb.Write(out, "\n")
	}
	return yes, err
}
