// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
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
			"Exit status: 0 the device is free, 1 it is still held, 2 could not look, 3 refused: nothing was changed.",
		Example: "  kubediag release /dev/rbd3\n" +
			"  kubediag release --dry-run 252:48",
		Args:              takes("DEVICE", 1),
		ValidArgsFunction: completeArgs(blockDevices),
	}
	o.addFlags(cmd.Flags())
	change.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return ended(cmd.Context(), "release", o.release(cmd, args[0], change))
	}
	return cmd
}

// release releases the device that is named.
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
	at, err := l.find(ctx, name)
	if err != nil {
		return err
	}
	report, err := l.one(ctx, at, time.Now())
	if err != nil {
		return err
	}
	v := recoverView{scanView{Screen: terminal.New(w, os.Getenv), program: thisProgram()}}
	if err := write(w, v.Text(report.text())); err != nil {
		return err
	}
	if done, err := releasable(report); done {
		return err
	}
	e, err := newEngine(ctx, choice.Node, nil, orphan.DefaultMinimumAge)
	if err != nil {
		return err
	}
	t := &target{operation: recoverers[fault.HeldDevice], progress: planned, faults: []*scanFault{{
		Code: fault.HeldDevice, Details: fault.Details{Device: at.device.Name}, Mount: scanMount{Device: at.device.Number.String()},
	}}}
	t.spec.Parameters = map[string]string{device.ParamDevice: at.device.Number.String()}
	rec := &recovery{engine: e, view: v, targets: []*target{t}}
	if rec.plan(ctx); t.progress != planned {
		return t.error()
	}
	if err := writeThen(w, v.Text("\n"+v.actions(t.plan)), ctx.Err()); err != nil {
		return err
	}
	if change.dryRun {
		return ErrFaults
	}
	if !change.yes {
		if err := agree(cmd, "Release "+report.Device.title()+" as planned?", typed(cmd, v.program, "--yes", name)); err != nil {
			return err
		}
	}
	if err := rec.repair(ctx, change.dataRoot); err != nil {
		return err
	}
	text, err := released(ctx, choice.Node, at, t)
	return writeThen(w, v.Text(text), err)
}

// releasable says where a device is not to be released how the verb ends: it is free, in use, or held in another way.
func releasable(r *holdersReport) (done bool, err error) {
	switch {
	case r.Device.State == stateFree && !r.partial:
		return true, nil
	case r.Device.State == stateFree:
		return true, unseen(r.Looked.NotLookedAt)
	case r.Device.State == stateInUse:
		return true, fmt.Errorf("%w: the device is in use as it should be", ErrRefused)
	case !r.Device.Removable:
		return true, fmt.Errorf("%w: %s", ErrRefused, cmp.Or(r.Device.Why, "nothing is known that could be unmounted"))
	}
	return false, nil
}

// error is how the verb ends where the target was not repaired.
func (t *target) error() error {
	if t.progress == refusal {
		return fmt.Errorf("%w: %s", ErrRefused, t.why)
	}
	return errors.New(t.why)
}

// released looks again, and says whether the device is free. The kubelet's next look may have detached it.
func released(ctx context.Context, n *kubelet.Node, at place, t *target) (text string, err error) {
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if t.progress == refusal {
		return "", t.error()
	}
	after, err := newHolderLook(n).one(ctx, place{device: at.device}, time.Now())
	name := fmt.Sprintf("%s (%s)", at.device.Node(), at.device.Number)
	switch {
	case device.Vanished(err):
		return "Released: " + name + " is detached.\n", nil
	case err != nil:
		return "", fmt.Errorf("look again: %w", err)
	case after.Device.State == stateFree && !after.Busy:
		text = "Released: " + name + " is free: the kernel lets it be opened exclusively, and nothing was found that has it.\n"
	default:
		text = after.text()
		err = ErrFaults
	}
	if t.progress == failed {
		text += printable.Quoted("The repair ended with: "+t.why) + "\n"
	}
	return text, err
}
