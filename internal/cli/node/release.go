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
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubediag.org/kubediag/internal/cli/terminal"
	"kubediag.org/kubediag/internal/cli/verb"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/printable"
	"kubediag.org/kubediag/internal/render"
)

// NewReleaseCommand makes the verb release. It looks for kubelets in the process file system at proc; empty: /proc.
func NewReleaseCommand(proc string) *cobra.Command {
	options := nodeOptions{proc: proc}
	var change changeOptions
	cmd := &cobra.Command{
		Use:   "release DEVICE|PATH",
		Short: "Release a device or file system that other mount namespaces keep: show the holders, ask, unmount, prove it",
		Long: "release looks for whatever keeps a device or file system busy, as holders does, and unmounts every copy of the kubelet's mount\n" +
			"in the mount namespace that has it. Then it detaches the device if the kubelet had attached it. It ends no process, and\n" +
			"forces nothing. It prints the plan first and asks; it repairs with the code of the agent, and proves at the end that\n" +
			"the device is free. A device that is in use, or held in another way, is left alone.\n\n" +
			"DEVICE and PATH are as for holders. PATH is also where the kubelet had mounted what others keep.\n\n" +
			"With -o json it asks nothing: without --yes it writes the plan and changes nothing.\n\n" +
			"Exit status: 0 the device is free, 1 it is still held, 2 could not look, 3 refused: nothing was changed.",
		Example: "  kubediag release /dev/rbd3\n" +
			"  kubediag release --dry-run 252:48\n" +
			"  kubediag release /var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/pvc-1/mount",
		Args:              verb.Takes("DEVICE", 1),
		ValidArgsFunction: verb.CompleteArg(blockDevices),
	}
	options.addFlags(cmd.Flags())
	change.addFlags(cmd)
	cmd.RunE = verb.Interruptible(func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(options.validate(), change.validate()); err != nil {
			return err
		}
		ctx, output := cmd.Context(), cmd.OutOrStdout()
		choice, err := options.nodeOrDefault(ctx)
		if err != nil {
			return err
		}
		l := newHolderLook(choice.Node)
		r := &deviceRelease{node: choice.Node, out: output, view: scanView{Screen: terminal.New(output, os.Getenv), program: thisProgram()}}
		if r.device, err = l.findDevice(ctx, args[0]); err != nil {
			return err
		}
		if r.before, err = l.inspectDevice(ctx, r.device, time.Now()); err != nil {
			return err
		}
		if *change.out == verb.Text {
			return r.runRelease(cmd, args[0], change)
		}
		r.out = io.Discard
		err = r.runRelease(cmd, args[0], change)
		return cmp.Or(render.WriteJSON(output, r.releaseReportOf()), err) // programs get one object at the end
	})
	return cmd
}

// deviceRelease is the release of one device.
type deviceRelease struct {
	node   *kubelet.Node
	device namedDevice
	view   scanView
	out    io.Writer // for people
	before *holdersReport
	target *repairTarget
	next   string // the command that carries out the plan; empty: there is none
	// after is the second look; nil: there was none, or the device was gone by then.
	after    *holdersReport
	detached bool
}

// runRelease plans, asks, repairs and looks again.
func (r *deviceRelease) runRelease(cmd *cobra.Command, name string, change changeOptions) error {
	ctx, d, view := cmd.Context(), r.device.device, r.view
	code := fault.HeldDevice
	if d.Kind == blockdev.Anonymous {
		code = fault.HeldMount
	}
	r.target = &repairTarget{operation: fault.Known().Entry(code).Operation, progress: progressPlanned, faults: []*scanFault{{
		Code: code, Details: fault.Details{Device: d.Name}, Mount: scanMount{Device: d.Number.String()},
	}}}
	r.target.spec.Parameters = map[string]string{device.ParamDevice: d.Number.String()}
	if err := verb.Write(r.out, view.Text(r.before.reportTextAbove(view.Screen, planLines))); err != nil {
		return err
	}
	if done, err := r.checkReleasable(); done {
		return err
	}
	e, err := newEngine(ctx, r.node, nil, orphan.DefaultMinimumAge)
	if err != nil {
		return err
	}
	rec := &recovery{engine: e, view: view, targets: []*repairTarget{r.target}}
	if rec.planAll(ctx); r.target.progress != progressPlanned {
		return r.target.repairError()
	}
	r.next = commandAsTyped(cmd, view.program, "--yes", name)
	plan, details := r.planText()
	if err := cmp.Or(verb.Write(r.out, view.Text(plan)), ctx.Err()); err != nil {
		return err
	}
	if change.dryRun {
		return verb.ErrFaults
	}
	if !change.yes {
		if err := change.confirmOnTerminal(cmd, "Release "+r.before.Device.titleText()+" as planned?", r.next, details); err != nil {
			return err
		}
	}
	if err := rec.repairAll(ctx, change.dataRoot); err != nil {
		return err
	}
	text, err := r.verifyRelease(ctx)
	return cmp.Or(verb.Write(r.out, view.Text(text)), err)
}

// planLines is the room on a screen for the plan and the question.
const planLines = 4

// planText is the plan. Many actions that are alike are one line: then details returns it in full, and else is nil.
func (r *deviceRelease) planText() (text string, details func() string) {
	actions := render.Actions(r.target.plan, false)
	if render.Folded(actions) {
		details = func() string { return r.view.Text(render.PlanText(r.view.Screen, actions, true)) }
	}
	return "\n" + render.PlanText(r.view.Screen, actions, false), details
}

// checkReleasable says how the verb ends if the device is not to be released: it is free, in use, or held in another
// way.
func (r *deviceRelease) checkReleasable() (done bool, err error) {
	d := r.before.Device
	switch {
	case d.State == stateFree && r.before.partial:
		return true, unseenError(r.before.Looked.Origin.NotLookedAt)
	case d.State == stateFree:
		r.target.progress = progressGone
		return true, nil
	case d.State == stateInUse:
		reasons := slices.Clone(d.InUseBy)
		for _, h := range r.before.Holders {
			if h.Verdict.Blocks && len(reasons) < maxUseReasons {
				reasons = append(reasons, strings.TrimSpace(fmt.Sprintf("%s %q of process %s", h.Kind, h.Path, h.processText())))
			}
		}
		r.target.setRefused("it is no leftover: %s", strings.Join(reasons, "; "))
	case !d.Removable:
		r.target.setRefused("%s", cmp.Or(d.Why, "nothing is known that could be unmounted"))
	default:
		return false, nil
	}
	return true, r.target.repairError()
}

// maxUseReasons bounds how many reasons a refusal has: uses of the device, and holders because of which the kernel refuses to
// unmount the mount that was named.
const maxUseReasons = 10

// repairError is how the verb ends where the target was not repaired.
func (t *repairTarget) repairError() error {
	if t.progress == progressRefused {
		return fmt.Errorf("%w: %s", verb.ErrRefused, t.reason)
	}
	return errors.New(t.reason)
}

// verifyRelease looks again, and says whether the device is free. The kubelet's next look may have detached it.
func (r *deviceRelease) verifyRelease(ctx context.Context) (text string, err error) {
	target := r.target
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if target.progress == progressRefused {
		return "", target.repairError()
	}
	after, err := newHolderLook(r.node).inspectDevice(ctx, namedDevice{device: r.device.device}, time.Now())
	name := fmt.Sprintf("%s (%s)", r.device.device.Node(), r.device.device.Number)
	isCopy := func(h useHolder) bool { return h.Origin.HostPath != "" } // of a mount of the kubelet's
	switch {
	case r.device.device.Kind == blockdev.Anonymous && // its number may be another's
		(device.IsGone(err) || err == nil && !slices.ContainsFunc(after.Holders, isCopy)):
		target.setReleased()
		return "Released: " + r.before.Device.titleText() + " is mounted nowhere, and nothing has it open.\n", nil
	case device.IsGone(err):
		r.detached = true
		target.setReleased()
		return "Released: " + name + " is detached.\n", nil
	case err != nil:
		return "", fmt.Errorf("look again: %w", err)
	}
	ended := target.progress
	if r.after = after; after.Device.State == stateFree && !after.Busy {
		target.setReleased()
		text = "Released: " + name + " is free: the kernel lets it be opened exclusively, and nothing was found that has it.\n"
	} else {
		target.progress, target.reason = progressFailed, cmp.Or(target.reason, "a second look still finds it held")
		text, err = after.reportTextAbove(r.view.Screen, 0), verb.ErrFaults
	}
	if ended == progressFailed {
		text += printable.Quoted("The repair ended with: "+target.reason) + "\n"
	}
	return text, err
}

// setReleased notes that a second look has found the device free. If this command has changed nothing, it was gone
// before.
func (t *repairTarget) setReleased() {
	if t.progress != progressGone {
		t.progress = progressHealed
	}
}

// releaseReport is the JSON of release: its plan and the result.
type releaseReport struct {
	SchemaVersion int `json:"schemaVersion"`
	repairResult
	// Next is the command that carries out the plan. It is left out without a plan.
	Next string `json:"next,omitempty"`
	// Detached is whether the device was gone at the second look.
	Detached bool `json:"detached"`
	// Before is the use of the device at first, and After its use at a second look. After is left out if there was no second
	// look.
	Before deviceUse  `json:"before"`
	After  *deviceUse `json:"after,omitempty"`
}

func (r *deviceRelease) releaseReportOf() *releaseReport {
	report := &releaseReport{SchemaVersion: schemaVersion, repairResult: r.target.resultOf(), Detached: r.detached, Before: r.before.deviceUse}
	if r.target.progress == progressPlanned {
		report.Next = r.next
	}
	if r.after != nil {
		report.After = &r.after.deviceUse
	}
	return report
}
