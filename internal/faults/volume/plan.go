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

// Plan returns the actions that repair a volume which Inspect has just found, in their order, and the reasons of those that
// are refused. It changes nothing and asks nothing.
func (i *Inspector) Plan(ctx context.Context, v *Health, o PlanOptions) (actions []fault.Action, refusals []string, err error) {
	for _, c := range v.choices(o) {
		if c.refusal != "" {
			refusals = append(refusals, c.refusal)
		} else {
			actions = append(actions, c.action)
		}
	}
	return actions, refusals, ctx.Err()
}

// choice is an action, or the reason why it is refused.
type choice struct {
	action  fault.Action
	mount   mountns.Mount
	refusal string
	do      func(ctx context.Context, i *Inspector) (fault.Applied, error)
}

// choice is one about a mount of the volume that has a fault.
func (v *Health) choice(kind fault.ActionKind, m mountns.Mount, code fault.Code) choice {
	pod, at := v.Pod, faults.MountOf(m)
	return choice{mount: m, action: fault.Action{Kind: kind, Target: at.Point, Mount: &at, Pod: &pod, Fault: code}}
}

// replacement is the choice to replace such a mount.
func (v *Health) replacement(m mountns.Mount, code fault.Code) choice {
	c := v.choice(fault.Replace, m, code)
	c.action.Loss, c.action.Lossless = loss(code), true
	return c
}

// choices goes through everything that is broken: the volume's own mount, the kubelet's binds, the containers' copies.
func (v *Health) choices(o PlanOptions) []choice {
	var all []choice
	if v.Code == fault.HungMount && o.Abort {
		all = append(all, v.abort())
	}
	if v.Code != "" {
		all = append(all, v.replace(o))
	}
	for _, c := range v.Copies {
		all = append(all, c.replace(o))
	}
	return all
}

// replace is about the volume's own mount.
func (v *Health) replace(o PlanOptions) choice {
	c := v.replacement(v.Mount, v.Code)
	c.action.Safety = v.safety()
	what := fmt.Sprintf("the mount of volume %q at %q stays: ", v.Name, v.Point)
	switch {
	case v.Plugin == HostPathPlugin:
		c.refusal = fmt.Sprintf("the mount at %q stays: it is not the kubelet's, but what the pod's hostPath %q lies on", v.Mount.Point, v.Point)
	case v.Code == fault.HungMount && !o.Abort:
		c.refusal = what + "it does not answer, and may yet; to abort its connection has to be asked for, as what has not been stored is lost then"
	case v.Source == nil:
		c.refusal = what + v.NoSourceReason
	case len(v.WrittenToNodeDisk) > 0:
		c.refusal = what + v.keepWritten()
	case v.children > 0:
		c.refusal = what + "other mounts lie on it"
	case v.Answer.Stat.Inode != 0 && !v.Source.stat.Dir:
		c.refusal = what + fmt.Sprintf("%q is no directory", v.Source.Path)
	}
	c.do = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: v.Pod.UID}, v.Mount, v.Answer, v.Source)
	}
	return c
}

// keepWritten says how what was written to the node's own disk gets into the volume.
func (v *Health) keepWritten() string {
	return fmt.Sprintf("the pod has written to the node's own disk (%s), which the volume would hide. Stop what writes there, copy it "+
		"while it can be reached, as with \"cp -a %s/. %s/\", empty the directory, and try again. On the disk it lies at %q below the "+
		"mount that covers it", strings.Join(v.WrittenToNodeDisk, ", "), v.Point, v.Source.Path, v.location().covered)
}

// safety says why the volume's mount can be replaced.
func (v *Health) safety() string {
	if v.Source == nil {
		return ""
	}
	return fmt.Sprintf("%s; %q takes its place: %s; it is put beneath the mount before that goes, so that nobody finds an empty directory",
		strings.Join(v.Reasons, "; "), v.Source.Path, v.Source.Reason)
}

// loss says what is lost when a mount with that fault goes.
func loss(code fault.Code) string {
	switch code {
	case fault.DisconnectedFUSE, fault.HungMount:
		return "nothing: what was not stored was lost when the daemon went; files that are open there fail as they do now"
	case fault.StaleFileHandle:
		return "nothing: files that are open there fail as they do now"
	}
	return "nothing: no file is removed; what has files open there keeps them, and who looks anew finds the volume"
}

// replace is about a copy.
func (c *Copy) replace(o PlanOptions) choice {
	v := c.volume
	choice := v.replacement(c.Mount, c.Code)
	choice.action.Container = c.Container
	what := fmt.Sprintf("the copy of volume %q at %q in mount namespace %s stays: ", v.Name, c.Point, c.Namespace)
	switch {
	case c.Code == fault.HungMount && !o.Abort:
		choice.refusal = what + "it does not answer, and may yet"
	case !c.Decision.Replaceable:
		choice.refusal = what + c.Decision.Reason
	case c.Source == nil:
		choice.refusal = what + v.NoSourceReason
	case len(v.WrittenToNodeDisk) > 0:
		choice.refusal = what + v.keepWritten()
	default:
		choice.action.Safety = fmt.Sprintf("%s; %q takes its place: %s; it is put beneath the mount before that goes, so that nobody finds an "+
			"empty directory", c.Decision.Reason, c.Source.Path, c.Source.Reason)
	}
	choice.do = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.replace(ctx, replaceOrder{Owner: c.accountable(), ReadOnly: c.readOnly()}, c.Mount, c.Answer, c.Source)
	}
	return choice
}

// abort is about the connection of a volume that hangs.
func (v *Health) abort() choice {
	c := v.choice(fault.Abort, v.Mount, v.Code)
	c.action.Safety = fmt.Sprintf("%s; the connection is that of device %s alone; it is only aborted after it has answered nothing for another "+
		"%s; whatever waits for it fails then, and every mount of it is dead afterwards",
		strings.Join(v.Reasons, "; "), deviceOf(v.Mount.Mount), defaultSilence)
	c.action.Loss = fmt.Sprintf("data in flight: what processes have written there and the daemon has not stored is lost, for this pod and "+
		"the %d others that share the file system", v.SharedWithCount)
	switch {
	case v.Plugin == HostPathPlugin:
		c.refusal = fmt.Sprintf("the connection of the mount at %q stays: it is not the kubelet's, but what the pod's hostPath %q lies on",
			v.Mount.Point, v.Point)
	case v.Mount.Major != 0 || !strings.HasPrefix(v.Mount.FSType, "fuse"):
		c.refusal = fmt.Sprintf("the mount of volume %q at %q is of type %q: only FUSE has a connection that can be aborted", v.Name, v.Point,
			v.Mount.FSType)
	}
	c.do = func(ctx context.Context, i *Inspector) (fault.Applied, error) { return i.abort(ctx, v.Mount) }
	return c
}
