// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// PlanOptions permit what is not planned by default.
type PlanOptions struct {
	// Abort allows to abort a connection that hangs.
	Abort bool
}

// Plan returns the actions that repair a volume which Inspect has just found, in their order, and the reasons of those
// that are refused. It changes nothing and asks nothing.
func (i *Inspector) Plan(ctx context.Context, v *Health, o PlanOptions) (actions []fault.Action, refusals []string, err error) {
	for _, c := range v.plannedActions(o) {
		if c.refusal != "" {
			refusals = append(refusals, c.refusal)
		} else {
			actions = append(actions, c.action)
		}
	}
	return actions, refusals, ctx.Err()
}

// plannedAction is an action, or the reason why it is refused.
type plannedAction struct {
	action  fault.Action
	mount   mountns.Mount
	refusal string
	perform func(ctx context.Context, i *Inspector) (fault.Applied, error)
}

// actionOn is one about a mount of the volume that has a fault.
func (v *Health) actionOn(kind fault.ActionKind, m mountns.Mount, code fault.Code) plannedAction {
	pod, at := v.Pod, faults.MountOf(m)
	return plannedAction{mount: m, action: fault.Action{Kind: kind, Target: at.Point, Mount: &at, Pod: &pod, Fault: code}}
}

// replacementOf is the choice to replace such a mount.
func (v *Health) replacementOf(m mountns.Mount, code fault.Code) plannedAction {
	c := v.actionOn(fault.Replace, m, code)
	c.action.Loss, c.action.Lossless = lossOf(code), true
	return c
}

// plannedActions goes through everything that is broken: the volume's own mount, the kubelet's binds, the containers'
// copies.
func (v *Health) plannedActions(o PlanOptions) []plannedAction {
	var all []plannedAction
	if v.Code == fault.HungMount && o.Abort {
		all = append(all, v.abortVolume())
	}
	if v.Code != "" {
		all = append(all, v.replaceVolume(o))
	}
	for _, c := range v.Copies {
		all = append(all, c.replaceCopy(o))
	}
	return all
}

// replaceVolume is about the volume's own mount.
func (v *Health) replaceVolume(o PlanOptions) plannedAction {
	planned := v.replacementOf(v.Mount, v.Code)
	planned.action.Safety = v.safetyReason()
	what := fmt.Sprintf("the mount of volume %q at %q stays: ", v.Name, v.Point)
	switch {
	case v.Plugin == HostPathPlugin:
		planned.refusal = fmt.Sprintf("the mount at %q stays: it is not the kubelet's; the pod's hostPath %q lies on it", v.Mount.Point, v.Point)
	case v.Code == fault.HungMount && !o.Abort:
		planned.refusal = what + "it does not answer, but may recover; an abort must be requested, because it loses data that is not stored yet"
	case v.Source == nil:
		planned.refusal = what + v.NoSourceReason
	case len(v.WrittenToNodeDisk) > 0:
		planned.refusal = what + v.keepWrittenAdvice()
	case v.children > 0:
		planned.refusal = what + "other mounts lie on it"
	case v.Answer.Stat.Inode != 0 && !v.Source.probedStat.Dir:
		planned.refusal = what + fmt.Sprintf("%q is no directory", v.Source.Path)
	}
	planned.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: v.Pod.UID}, v.Mount, v.Answer, v.Source)
	}
	return planned
}

// keepWrittenAdvice says how what was written to the node's own disk gets into the volume.
func (v *Health) keepWrittenAdvice() string {
	return fmt.Sprintf("the pod has written to the node's own disk (%s), which the volume would hide. Stop what writes there, copy it "+
		"while it can be reached, as with \"cp -a %s/. %s/\", empty the directory, and try again. On the disk it lies at %q below the "+
		"mount that covers it", strings.Join(v.WrittenToNodeDisk, ", "), v.Point, v.Source.Path, v.stagedLocation().Covered)
}

// safetyReason says why the volume's mount can be replaced.
func (v *Health) safetyReason() string {
	if v.Source == nil {
		return ""
	}
	return fmt.Sprintf("%s; %q takes its place: %s; the new mount goes beneath the old one first; if the kernel cannot do that, only an unused mount is replaced",
		strings.Join(v.Reasons, "; "), v.Source.Path, v.Source.Reason)
}

// lossOf says what is lost when a mount with that fault goes.
func lossOf(code fault.Code) string {
	switch code {
	case fault.DisconnectedFUSE, fault.HungMount:
		return "nothing: data that was not stored was lost when the daemon ended; files that are open there keep failing"
	case fault.StaleFileHandle:
		return "nothing: files that are open there keep failing"
	}
	return "nothing: no file is removed; open files stay open, and new opens reach the volume"
}

// replaceCopy is about a copy.
func (c *Copy) replaceCopy(o PlanOptions) plannedAction {
	health := c.volume
	choice := health.replacementOf(c.Mount, c.Code)
	choice.action.Container = c.Container
	what := fmt.Sprintf("the copy of volume %q at %q in mount namespace %s stays: ", health.Name, c.Point, c.Namespace)
	switch {
	case c.Code == fault.HungMount && !o.Abort:
		choice.refusal = what + "it does not answer, but may recover"
	case !c.Decision.Replaceable:
		choice.refusal = what + c.Decision.Reason
	case c.Source == nil:
		choice.refusal = what + health.NoSourceReason
	case len(health.WrittenToNodeDisk) > 0:
		choice.refusal = what + health.keepWrittenAdvice()
	default:
		choice.action.Safety = fmt.Sprintf("%s; %q takes its place: %s; the new mount goes beneath the old one first; if the kernel "+
			"cannot do that, only an unused mount is replaced", c.Decision.Reason, c.Source.Path, c.Source.Reason)
	}
	choice.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: c.accountablePod(), ReadOnly: c.readOnly()}, c.Mount, c.Answer, c.Source)
	}
	return choice
}

// abortVolume is about the connection of a volume that hangs.
func (v *Health) abortVolume() plannedAction {
	planned := v.actionOn(fault.Abort, v.Mount, v.Code)
	planned.action.Safety = fmt.Sprintf("%s; the connection serves only device %s; it is aborted only after another %s without an answer; "+
		"then all calls that wait for it fail, and each of its mounts is dead",
		strings.Join(v.Reasons, "; "), deviceOf(v.Mount.Mount), defaultSilence)
	planned.action.Loss = fmt.Sprintf("data in flight: writes that the daemon has not stored are lost, for this pod and "+
		"the %d others that share the file system", v.SharedWithCount)
	switch {
	case v.Plugin == HostPathPlugin:
		planned.refusal = fmt.Sprintf("the connection of the mount at %q stays: it is not the kubelet's; the pod's hostPath %q lies on it",
			v.Mount.Point, v.Point)
	case v.Mount.Major != 0 || !strings.HasPrefix(v.Mount.FSType, "fuse"):
		planned.refusal = fmt.Sprintf("the mount of volume %q at %q is of type %q: only FUSE has a connection that can be aborted", v.Name, v.Point,
			v.Mount.FSType)
	}
	planned.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) { return i.abort(ctx, v.Mount) }
	return planned
}
