// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/printable"
)

// NewReleaseCommand makes the verb release. It looks for kubelets in the process file system at proc; empty: /proc.
func NewReleaseCommand(proc string) *cobra.Command {
	o := nodeOptions{proc: proc}
	var change changeOptions
	cmd := &cobra.Command{
		Use:   "release DEVICE",
		Short: "Release a block device that other mount namespaces keep: show the holders, ask, unmount, prove it",
		Long: "release looks for whatever keeps a block device busy, as holders does, and unmounts every copy of the kubelet's mount\n" +
			"in the mount namespace that has it. Then it detaches the device if the kubelet had attached it. It ends no process, and\n" +
			"forces nothing. It prints the plan first and asks; it repairs with the code of the agent, and proves at the end that\n" +
			"the device is free. A device that is in use, or held in another way, is left alone.\n\n" +
			"DEVICE is named as for holders.\n\n" +
			"With -o json it asks nothing: without --yes it writes the plan and changes nothing.\n\n" +
			"Exit status: 0 the device is free, 1 it is still held, 2 could not look, 3 refused: nothing was changed.",
		Example: "  kubediag release /dev/rbd3\n" +
			"  kubediag release --dry-run 252:48",
		Args:              verb.Takes("DEVICE", 1),
		ValidArgsFunction: verb.CompleteArg(blockDevices),
	}
	o.addFlags(cmd.Flags())
	change.addFlags(cmd)
	cmd.RunE = interruptible(func(cmd *cobra.Command, args []string) error { return o.release(cmd, args[0], change) })
	return cmd
}

// release is the release of one device.
type release struct {
	node   *kubelet.Node
	at     place
	view   recoverView
	out    io.Writer // for people
	before *holdersReport
	target *target
	next   string // the command that carries out the plan; empty: there is none
	// after is the second look; nil: there was none, or the device was gone by then.
	after    *holdersReport
	detached bool
}

// release releases the device that is named. Programs get one object at the end.
func (o nodeOptions) release(cmd *cobra.Command, name string, change changeOptions) error {
	if err := errors.Join(o.validate(), change.validate()); err != nil {
		return err
	}
	ctx, w := cmd.Context(), cmd.OutOrStdout()
	choice, err := o.nodeOrDefault(ctx)
	if err != nil {
		return err
	}
	l := newHolderLook(choice.Node)
	r := &release{node: choice.Node, out: w, view: recoverView{scanView{Screen: terminal.New(w, os.Getenv), program: thisProgram()}}}
	if r.at, err = l.find(ctx, name); err != nil {
		return err
	}
	if r.before, err = l.one(ctx, r.at, time.Now()); err != nil {
		return err
	}
	if *change.out == jsonFormat {
		r.out = io.Discard
	}
	err = r.run(cmd, name, change)
	if *change.out == jsonFormat {
		return jsonThen(w, r.report(), err)
	}
	return err
}

// run plans, asks, repairs and looks again.
func (r *release) run(cmd *cobra.Command, name string, change changeOptions) error {
	ctx, d, v := cmd.Context(), r.at.device, r.view
	r.target = &target{operation: recoverers[fault.HeldDevice], progress: planned, faults: []*scanFault{{
		Code: fault.HeldDevice, Details: fault.Details{Device: d.Name}, Mount: scanMount{Device: d.Number.String()},
	}}}
	r.target.spec.Parameters = map[string]string{device.ParamDevice: d.Number.String()}
	if err := verb.Write(r.out, v.Text(r.before.text())); err != nil {
		return err
	}
	if done, err := r.releasable(); done {
		return err
	}
	e, err := newEngine(ctx, r.node, nil, orphan.DefaultMinimumAge)
	if err != nil {
		return err
	}
	rec := &recovery{engine: e, view: v, targets: []*target{r.target}}
	if rec.plan(ctx); r.target.progress != planned {
		return r.target.error()
	}
	r.next = typed(cmd, v.program, "--yes", name)
	if err := writeThen(r.out, v.Text("\n"+v.actions(r.target.plan)), ctx.Err()); err != nil {
		return err
	}
	if change.dryRun {
		return verb.ErrFaults
	}
	if !change.yes {
		if err := change.agree(cmd, "Release "+r.before.Device.title()+" as planned?", r.next); err != nil {
			return err
		}
	}
	if err := rec.repair(ctx, change.dataRoot); err != nil {
		return err
	}
	text, err := r.prove(ctx)
	return writeThen(r.out, v.Text(text), err)
}

// releasable says how the verb ends if the device is not to be released: it is free, in use, or held in another way.
func (r *release) releasable() (done bool, err error) {
	d := r.before.Device
	switch {
	case d.State == stateFree && r.before.partial:
		return true, unseen(r.before.Looked.NotLookedAt)
	case d.State == stateFree:
		r.target.progress = gone
		return true, nil
	case d.State == stateInUse:
		r.target.refuse("the device is in use as it should be")
	case !d.Removable:
		r.target.refuse("%s", cmp.Or(d.Why, "nothing is known that could be unmounted"))
	default:
		return false, nil
	}
	return true, r.target.error()
}

// error is how the verb ends where the target was not repaired.
func (t *target) error() error {
	if t.progress == refusal {
		return fmt.Errorf("%w: %s", verb.ErrRefused, t.why)
	}
	return errors.New(t.why)
}

// prove looks again, and says whether the device is free. The kubelet's next look may have detached it.
func (r *release) prove(ctx context.Context) (text string, err error) {
	t := r.target
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if t.progress == refusal {
		return "", t.error()
	}
	after, err := newHolderLook(r.node).one(ctx, place{device: r.at.device}, time.Now())
	name := fmt.Sprintf("%s (%s)", r.at.device.Node(), r.at.device.Number)
	switch {
	case device.IsGone(err):
		r.detached = true
		t.released()
		return "Released: " + name + " is detached.\n", nil
	case err != nil:
		return "", fmt.Errorf("look again: %w", err)
	}
	ended := t.progress
	if r.after = after; after.Device.State == stateFree && !after.Busy {
		t.released()
		text = "Released: " + name + " is free: the kernel lets it be opened exclusively, and nothing was found that has it.\n"
	} else {
		t.progress, t.why = failed, cmp.Or(t.why, "a second look still finds it held")
		text, err = after.text(), verb.ErrFaults
	}
	if ended == failed {
		text += printable.Quoted("The repair ended with: "+t.why) + "\n"
	}
	return text, err
}

// released notes that a second look has found the device free. If this command has changed nothing, it was gone before.
func (t *target) released() {
	if t.progress != gone {
		t.progress = healed
	}
}

// releaseReport is what release has planned and done, as it is in JSON.
type releaseReport struct {
	SchemaVersion int `json:"schemaVersion"`
	repairResult
	// Next is the command that carries out what is planned. It is left out if nothing is.
	Next string `json:"next,omitempty"`
	// Detached is whether the device was gone when it was looked for again.
	Detached bool `json:"detached"`
	// Before is what was found first, and After what a second look has found. After is left out if there was none.
	Before deviceUse  `json:"before"`
	After  *deviceUse `json:"after,omitempty"`
}

func (r *release) report() *releaseReport {
	report := &releaseReport{SchemaVersion: schemaVersion, repairResult: r.target.result(), Detached: r.detached, Before: r.before.deviceUse}
	if r.target.progress == planned {
		report.Next = r.next
	}
	if r.after != nil {
		report.After = &r.after.deviceUse
	}
	return report
}
