// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/podinfo"
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
		if c.refusal.Reason != "" {
			refusals = append(refusals, c.refusalText())
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
	stays   string        // the subject of a refusal, such as: the mount at "/data" stays
	refusal fault.Refusal // without a reason: there is none
	perform func(ctx context.Context, i *Inspector) (fault.Applied, error)
}

func (p *plannedAction) refuse(reason fault.RefusalReason, format string, args ...any) {
	p.refusal = fault.Refusal{Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// refusalText is the refusal as a sentence, with its subject.
func (p *plannedAction) refusalText() string { return p.stays + ": " + p.refusal.Text }

// actionOn is one about a mount of the volume that has a fault.
func (v *Health) actionOn(kind fault.ActionKind, m mountns.Mount, of fault.Key) plannedAction {
	pod, at := v.Evidence.Pod, faults.MountOf(m)
	return plannedAction{mount: m, action: fault.Action{Kind: kind, For: []fault.Key{of}, Target: at.Point, Mount: &at, Pod: &pod}}
}

// replacementOf is the choice to replace such a mount.
func (v *Health) replacementOf(m mountns.Mount, of fault.Key) plannedAction {
	c := v.actionOn(fault.Replace, m, of)
	c.action.Loss, c.action.Lossless = fault.Known().Entry(of.Code).Loss, true
	return c
}

// plannedActions goes through everything that is broken: the connection of a volume that hangs, the volume's own mount, the kubelet's binds, the
// containers' copies.
func (v *Health) plannedActions(o PlanOptions) []plannedAction {
	var all []plannedAction
	if v.Verdict.Code == fault.HungMount && o.Abort {
		planned := v.actionOn(fault.Abort, v.Evidence.Mount, v.finding().Key())
		planned.action.Safety = fmt.Sprintf("%s; the connection serves only device %s; it is aborted only after another %s without an answer; "+
			"then all calls that wait for it fail, and each of its mounts is dead",
			strings.Join(v.Verdict.Reasons, "; "), deviceOf(v.Evidence.Mount.Mount), defaultSilence)
		planned.action.Loss = fmt.Sprintf("data in flight: writes that the daemon has not stored are lost, for this pod and "+
			"the %d others that share the file system", v.Surroundings.SharedWithCount)
		planned.stays = fmt.Sprintf("the connection of the mount at %q stays", v.Evidence.Mount.Point)
		switch {
		case v.Evidence.isNodes():
			planned.refuse(fault.NodeMount, "it is not the kubelet's")
		case v.Evidence.Mount.Major != 0 || !strings.HasPrefix(v.Evidence.Mount.FSType, "fuse"):
			planned.refuse(fault.NotProven, "it is of type %q: only FUSE has a connection that can be aborted", v.Evidence.Mount.FSType)
		}
		planned.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) { return i.abort(ctx, v.Evidence.Mount) }
		all = append(all, planned)
	}
	var copies []plannedAction
	for _, c := range v.Copies {
		copies = append(copies, c.replaceCopy(o))
	}
	kept := v.keptText(copies)
	if v.isGoing() { // the binds of a volume are not found any more once its own mount is gone
		all, copies = append(all, copies...), nil
	}
	if v.Verdict.Code != "" {
		own := v.repairVolume(o)
		for i := range own {
			if own[i].refusal.Reason == "" {
				own[i].action.Loss += kept
			}
		}
		all = append(all, own...)
	}
	return append(all, copies...)
}

// keptText names the containers that keep a broken mount of the volume, as the end of a sentence: the container runtime has made one for each, and no unmount
// on the host reaches it. It is empty if there is none, or if the pod goes. planned are the actions on the copies.
func (v *Health) keptText(planned []plannedAction) string {
	if v.isGoing() {
		return ""
	}
	var users []string
	for i, c := range v.Copies {
		user := c.Holder.describe()
		if c.Mount.Namespace.PID != 0 && !c.origin.onHost {
			user += fmt.Sprintf(" (process %d)", c.Mount.Namespace.PID)
		}
		if planned[i].refusal.Reason != "" && (c.origin.onHost || c.origin.runtimeRecord != nil) && !slices.Contains(users, user) {
			users = append(users, user)
		}
	}
	if len(users) == 0 {
		return ""
	}
	return "; the broken mount stays until they start again in: " + strings.Join(fault.Most(users, maxNamed, "and %d more"), ", ")
}

// repairVolume is about the volume's own mount.
func (v *Health) repairVolume(o PlanOptions) []plannedAction {
	hung := v.Verdict.Code == fault.HungMount
	if v.Evidence.isNodes() && !hung {
		return v.planRemoval()
	}
	if v.isGoing() && isDeadFUSE(v.Verdict, v.Evidence.Mount.Mount) {
		planned := v.freePod(v.removalOf(v.Evidence.Mount, v.finding().Key()))
		if v.Evidence.MountsUpon > 0 && planned.refusal.Reason == "" {
			planned.refuse(fault.InUse, "other mounts lie on it")
		}
		return []plannedAction{planned}
	}
	planned := v.replacementOf(v.Evidence.Mount, v.finding().Key())
	planned.action.Safety = v.Replacement.Source.safetyReason(strings.Join(v.Verdict.Reasons, "; "))
	planned.stays = fmt.Sprintf("the mount of volume %q at %q stays", v.Evidence.Name, v.Evidence.Point)
	going := v.goingReason()
	switch {
	case hung && !o.Abort:
		planned.refuse(fault.NoAnswer, "it does not answer, but may recover; an abort must be requested, because it loses data that is not stored yet")
	case v.Evidence.isNodes():
		planned.refuse(fault.NodeMount, "it is not the kubelet's, and a new pod gets the same")
	case going != "":
		planned.refuse(fault.PodGoes, "%s", going)
	case v.Evidence.Mismatch.PlainAt != "" || v.Evidence.Mismatch.Covered != "":
		v.refuseDirectory(&planned)
	case v.Replacement.Source == nil:
		planned.refuse(v.noSource(), "%s", v.Replacement.NoSourceReason)
	case len(v.Replacement.WrittenToNodeDisk) > 0:
		planned.refuse(fault.HasData, "%s", v.keepWrittenAdvice())
	case v.Evidence.MountsUpon > 0:
		planned.refuse(fault.InUse, "other mounts lie on it")
	case v.Evidence.Answer.Stat.Inode != 0 && !v.Replacement.Source.probedStat.Dir:
		planned.refuse(fault.NotProven, "%q is no directory", v.Replacement.Source.Path)
	}
	planned.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: v.Evidence.Pod.UID}, v.Evidence.Mount, v.Evidence.Answer, v.Replacement.Source)
	}
	return []plannedAction{planned}
}

// refuseDirectory says why nothing takes the place of a directory of the node's own disk that the pod has: a new pod gets the volume.
func (v *Health) refuseDirectory(planned *plannedAction) {
	of, written := v.Evidence.Mismatch, strings.Join(v.Replacement.WrittenToNodeDisk, ", ")
	switch {
	case of.PlainAt != "" && written != "":
		planned.refuse(fault.HasData, "%s, and the pod has written to the node's own disk there (%s): stop what writes, keep what is in the directory, "+
			"empty it, and delete the pod; a new one gets its volume", v.Replacement.NoSourceReason, written)
	case of.PlainAt != "":
		planned.refuse(fault.NoSource, "%s; a new pod gets its volume", v.Replacement.NoSourceReason)
	case of.Covered != "" && written != "":
		planned.refuse(fault.HasData, "the pod has written to the hidden directory (%s), and a new pod gets the file system that covers it: stop the program that "+
			"writes, copy these files with a bind of the device that the directory lies on, and delete the pod", written)
	case of.Covered != "":
		planned.refuse(fault.NoSource, "the containers of the pod have the hidden directory; a new pod gets the file system that covers it")
	}
}

// goingReason says why nothing is put into a pod that is going: the kubelet unmounts its volumes.
func (v *Health) goingReason() string {
	switch podinfo.StateOf(v.Evidence.spec.pod) {
	case fault.PodDeleting:
		return "the pod is being deleted, and the kubelet unmounts its volumes"
	case fault.PodEnded:
		return "the pod has ended, and the kubelet unmounts its volumes"
	}
	return ""
}

// noSource is why nothing can take the volume's place: the driver has nothing mounted that lives, or it is not known what
// belongs there.
func (v *Health) noSource() fault.RefusalReason {
	unstaged := v.Evidence.Staging == nil || v.Evidence.Expected.StagingRoot.State != probe.Alive
	if v.Verdict.Code != fault.VolumeIOError && v.Evidence.Record != nil && unstaged {
		return fault.AwaitsDriver
	}
	return fault.NoSource
}

// keepWrittenAdvice says how what was written to the node's own disk gets into the volume.
func (v *Health) keepWrittenAdvice() string {
	return fmt.Sprintf("the pod has written to the node's own disk (%s), which the volume would hide. Stop what writes there, copy it "+
		"while it can be reached, as with \"cp -a %s/. %s/\", empty the directory, and try again. On the disk it lies at %q below the "+
		"mount that covers it", strings.Join(v.Replacement.WrittenToNodeDisk, ", "), v.Evidence.Point, v.Replacement.Source.Path, v.Evidence.stagedLocation().Covered)
}

// replaceCopy is about a copy.
func (c *Copy) replaceCopy(o PlanOptions) plannedAction {
	health := c.volume
	if health.isGoing() && c.origin.onHost && isDeadFUSE(c.Verdict, c.Mount.Mount) {
		return health.freePod(health.removalOf(c.Mount, c.finding().Key()))
	}
	choice := health.replacementOf(c.Mount, c.finding().Key())
	choice.stays = fmt.Sprintf("the copy of volume %q at %q in mount namespace %s stays", health.Evidence.Name, c.Mount.Point, c.Mount.Namespace)
	going := health.goingReason()
	switch {
	case c.Verdict.Code == fault.HungMount && !o.Abort:
		choice.refuse(fault.NoAnswer, "it does not answer, but may recover")
	case going != "":
		choice.refuse(fault.PodGoes, "%s", going)
	case health.Replacement.Source == nil && health.Evidence.isNodes():
		choice.refuse(fault.NodeMount, "%s", health.Replacement.NoSourceReason)
	case health.Replacement.Source == nil:
		choice.refuse(health.noSource(), "%s", health.Replacement.NoSourceReason)
	case !c.Decision.Replaceable, c.Source == nil:
		choice.refuse(fault.NotProven, "%s", c.Decision.Reason)
	case len(health.Replacement.WrittenToNodeDisk) > 0:
		choice.refuse(fault.HasData, "%s", health.keepWrittenAdvice())
	default:
		choice.action.Safety = c.Source.safetyReason(c.Decision.Reason)
	}
	choice.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: c.accountablePod(), ReadOnly: c.readOnly()}, c.Mount, c.Answer, c.Source)
	}
	return choice
}
