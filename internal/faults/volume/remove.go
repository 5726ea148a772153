// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// A FUSE connection that is gone never comes back. A driver mounts a volume again, and the new mount takes the place of
// the dead one. Nothing does that for a mount of the node, or of a workload inside a volume: there the dead mount itself
// has to go. It is removed only if no write can then go to the node's own disk that was meant for it.

// RemovalFacts decide on the removal of a dead mount.
type RemovalFacts struct {
	// Asked is whether the facts were asked for.
	Asked bool `json:"asked,omitempty"`
	// Alive says of each of HiddenMounts whether its connection lives, in their order.
	Alive []bool `json:"alive,omitempty"`
	// PodRuns is what still runs of a pod that is being deleted, or why that is not known.
	PodRuns string `json:"podRuns,omitempty"`
	// KubeletsTurn is whether the kubelet still has time to unmount the volumes of such a pod itself.
	KubeletsTurn bool `json:"kubeletsTurn,omitempty"`
	// Elsewhere is whether the kubelet's namespace has the file system mounted outside of the pod's directory, too.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// UsedBy names another pod that uses the path, or says that it is not known whether there is one.
	UsedBy string `json:"usedBy,omitempty"`
}

// isDeadMount reports whether the volume is a mount that no driver makes again, and its FUSE connection is gone.
func (v *Health) isDeadMount() bool {
	return v.Evidence.isNodes() && v.Evidence.Origin.Container == "" && v.Evidence.Plugin != kubelet.LocalPlugin && isDeadFUSE(v.Verdict, v.Evidence.Mount.Mount)
}

// isGoing reports whether the pod of the volume is being deleted.
func (v *Health) isGoing() bool { return podinfo.StateOf(v.Evidence.spec.pod) == fault.PodDeleting }

// keepsPod reports whether the pod of the volume is being deleted, and proven not to run any more.
func (v *Health) keepsPod() bool {
	return v.isGoing() && v.Evidence.Removal.Asked && v.Evidence.Removal.PodRuns == ""
}

// isDeadFUSE reports whether a verdict is that the FUSE connection of a mount is gone. It never comes back.
func isDeadFUSE(verdict Verdict, m mountinfo.Mount) bool {
	return verdict.Code == fault.DisconnectedFUSE && strings.HasPrefix(m.FSType, "fuse")
}

// addRemovalFacts asks what decides on the removal of dead mounts, and whether the pods of broken ones are over. No file system is asked.
func (i *Inspector) addRemovalFacts(ctx context.Context, e *enumerator, volumes []*Health) error {
	dead := slices.DeleteFunc(slices.Clone(volumes), func(v *Health) bool {
		return !v.isDeadMount() && !((v.Broken() || v.Evidence.Origin.Inside) && v.isGoing())
	})
	if len(dead) == 0 {
		return nil
	}
	control, err := fuse.Open()
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	if err == nil {
		defer func() { _ = control.Close() }() // nothing is kept in it
	}
	runtime, _ := i.Runtime.(cri.PodRuntime)
	runs := map[string]string{} // by UID of the pod
	for _, v := range dead {
		v.Evidence.Removal.Asked = true
		for _, m := range v.Evidence.HiddenMounts {
			v.Evidence.Removal.Alive = append(v.Evidence.Removal.Alive, control != nil && connectionLives(control, m))
		}
		if !v.isGoing() {
			continue
		}
		what, asked := runs[v.Evidence.Pod.UID]
		if !asked {
			if what, err = cri.PodRuns(ctx, runtime, v.Evidence.Pod.UID); err != nil {
				what = "whether a process of it runs is not known: " + err.Error()
			}
			runs[v.Evidence.Pod.UID] = what
		}
		v.Evidence.Removal.PodRuns = what
		v.Evidence.Removal.KubeletsTurn = !mountstate.TimeIsOver(v.Evidence.spec.pod, cri.LastEnd(ctx, runtime, v.Evidence.Pod.UID), time.Now())
		if v.Evidence.Origin.Inside {
			v.Evidence.Removal.Elsewhere = slices.ContainsFunc(e.host.table.Mounts(), func(m mountinfo.Mount) bool {
				return deviceOf(m) == deviceOf(v.Evidence.Mount.Mount) && !mountinfo.Within(e.host.node.PodDir(v.Evidence.Pod.UID), m.Point)
			})
			v.Verdict = Judge(v.Evidence) // the facts decide whether it keeps the pod
		}
		if v.Evidence.isPath() {
			if v.Evidence.Removal.UsedBy, err = e.otherUser(ctx, v); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// connectionLives reports whether the kernel says that the connection of a mount has a server.
func connectionLives(control *fuse.Control, m mountinfo.Mount) bool {
	if m.Major != 0 || !strings.HasPrefix(m.FSType, "fuse") {
		return false
	}
	c, err := control.Connection(m.Minor)
	return err == nil && !c.Dead
}

// otherUser names another pod of the node that has a hostPath on the mount, or above it, or a volume that is a symbolic link to such a path.
func (e *enumerator) otherUser(ctx context.Context, v *Health) (user string, err error) {
	uids, err := e.host.node.PodUIDs(ctx)
	if err != nil {
		return "", err
	}
	slices.Sort(uids)
	err = e.host.node.Do(ctx, func() error {
		for _, uid := range uids {
			pod := e.podByUID(uid)
			switch {
			case user != "":
				return ctx.Err()
			case uid == v.Evidence.Pod.UID:
				continue
			case pod == nil:
				user = fmt.Sprintf("whether pod %q uses it is not known: its spec is not", uid)
				continue
			case podinfo.Ended(pod):
				continue
			}
			var paths []string
			for _, spec := range pod.Spec.Volumes {
				if spec.HostPath != nil {
					paths = append(paths, e.host.resolveLinks(path.Clean(spec.HostPath.Path)))
				}
			}
			places, err := e.host.node.PodVolumes(uid)
			if err != nil {
				user = fmt.Sprintf("whether pod %s/%s uses it is not known: %v", pod.Namespace, pod.Name, err)
			}
			for _, place := range places {
				if to := e.linkAt(place); to != "" {
					paths = append(paths, to)
				}
			}
			if user == "" && slices.ContainsFunc(paths, func(at string) bool {
				return mountinfo.Within(v.Evidence.Mount.Point, at) || mountinfo.Within(at, v.Evidence.Mount.Point)
			}) {
				user = fmt.Sprintf("pod %s/%s uses it, too", pod.Namespace, pod.Name)
			}
		}
		return ctx.Err()
	})
	return user, err
}

// planRemoval is about a mount that no driver makes again: the dead one, and those dead ones that lie between it and a
// living mount of the same source.
func (v *Health) planRemoval() []plannedAction {
	planned := v.removalOf(v.Evidence.Mount, v.finding().Key())
	dead, living := v.deadAboveLiving()
	switch {
	case v.Evidence.Origin.Container != "":
		planned.refuse(fault.NodeMount, "no driver mounts it again: the program that mounted it has to do that, and the container keeps "+
			"the broken mount until it starts again")
	case v.Evidence.Plugin == kubelet.LocalPlugin:
		planned.refuse(fault.NodeMount, "it is of a path of the node that PersistentVolume %q names", v.Evidence.Name)
	case v.Evidence.Link != "" && v.Evidence.Plugin != HostPathPlugin:
		planned.refuse(fault.NodeMount, "it is a mount of the driver's own, and the volume is a symbolic link to it: start its daemon first, and unmount the "+
			"dead mount if that does not")
	case v.Verdict.Code == fault.VolumeIOError:
		planned.refuse(fault.NoSource, "%s", noMountCures)
	case v.Verdict.Code == fault.StuckTermination:
		v.decideForeign(&planned)
	case !v.isDeadMount():
		planned.refuse(fault.NodeMount, "it is not the kubelet's, and a new pod gets the same: the program that mounted it has to "+
			"mount it again")
	case v.Evidence.MountsUpon > 0:
		planned.refuse(fault.InUse, "other mounts lie on it")
	case living:
		planned.action.Safety = v.Verdict.Reason() + "; a mount of the same type and source lies beneath it, and its connection lives: nothing writes to the node's disk"
		all := []plannedAction{planned}
		for _, m := range dead {
			next := v.removalOf(mountns.Mount{Mount: m, Namespace: v.Evidence.Mount.Namespace}, planned.action.For[0])
			next.action.Safety = planned.action.Safety
			all = append(all, next)
		}
		return all
	case v.isGoing():
		v.decideGoing(&planned)
	default:
		planned.refuse(fault.NodeMount, "without it, writes go to the node's own disk: start the program that mounts it first, then unmount it")
	}
	return []plannedAction{planned}
}

// decideGoing decides about a dead mount of a pod that is being deleted.
func (v *Health) decideGoing(planned *plannedAction) {
	switch {
	case !v.Evidence.Removal.Asked:
		planned.refuse(fault.PodGoes, "whether something of the pod still runs was not asked")
	case v.Evidence.Removal.PodRuns != "":
		planned.refuse(fault.PodGoes, "the last container of the pod has not ended: %s", v.Evidence.Removal.PodRuns)
	case v.Evidence.Removal.UsedBy != "":
		planned.refuse(fault.InUse, "%s", v.Evidence.Removal.UsedBy)
	default:
		planned.action.Safety = v.Verdict.Reason() + "; its pod is being deleted, no process of it runs, and no other pod uses the mount"
	}
}

// freePod is about a dead mount of the kubelet's that keeps a pod from going: that of a volume, or a subPath bind. The kubelet and the
// driver have their time first.
func (v *Health) freePod(planned plannedAction) plannedAction {
	switch {
	case v.Evidence.Removal.KubeletsTurn && v.keepsPod():
		planned.refuse(fault.PodGoes, "the pod is being deleted, and the kubelet still has time to unmount its volumes")
	default:
		v.decideGoing(&planned)
	}
	return planned
}

// decideForeign decides about a healthy mount inside a volume of a pod that cannot go for it. The kernel refuses to unmount it if anything
// uses it.
func (v *Health) decideForeign(planned *plannedAction) {
	switch {
	case v.Evidence.MountsUpon > 0:
		planned.refuse(fault.InUse, "other mounts lie on it")
	case !v.Evidence.Removal.Elsewhere:
		planned.refuse(fault.HasData, "it is the only mount of its file system, and what is in that could be lost")
	default:
		planned.action.Safety = v.Verdict.Reason() + "; no process of the pod runs, nothing uses the mount, and its file system stays mounted elsewhere"
		planned.action.Loss = "nothing: the file system stays mounted elsewhere"
		planned.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
			return i.remove(ctx, replaceOrder{Owner: v.Evidence.Pod.UID, Idle: true}, v.Evidence.Mount)
		}
	}
}

// judgeInside decides about a mount inside a volume by the verdict of its root. No container is started with it, and its owner may refuse
// root.
func judgeInside(e Evidence, root Verdict) Verdict {
	if root.Code == fault.DeletedVolumeSource || e.Answer.State == probe.Denied {
		root = Verdict{}
	}
	if at := e.Removal; root.Code == "" && root.UnknownReason == "" && at.Asked && at.PodRuns == "" && !at.KubeletsTurn {
		return brokenVerdict(fault.StuckTermination, "the pod is being deleted, and a mount that the kubelet has not made lies inside volume %q: %q of a file "+
			"system of type %q from %q; the kubelet cannot remove the directory that it is mounted on", e.Name, e.Mount.Root, e.Mount.FSType, e.Mount.Source)
	}
	return root
}

// removalOf is the choice to remove a mount.
func (v *Health) removalOf(m mountns.Mount, of fault.Key) plannedAction {
	c := v.actionOn(fault.Unmount, m, of)
	c.stays = fmt.Sprintf("the mount at %q stays", m.Point)
	c.action.Loss, c.action.Lossless = "nothing: a connection that is gone never comes back; files that are open there keep failing", true
	c.perform = func(ctx context.Context, i *Inspector) (fault.Applied, error) {
		return i.remove(ctx, replaceOrder{Owner: v.Evidence.Pod.UID}, m)
	}
	return c
}

// deadAboveLiving lists the dead mounts between the volume's and the first living one of the same source. living is
// false if there is none.
func (v *Health) deadAboveLiving() (dead []mountinfo.Mount, living bool) {
	own := v.Evidence.Mount.Mount
	for i, m := range slices.Backward(v.Evidence.HiddenMounts) {
		sameSource := m.FSType == own.FSType && m.Source != "" && m.Source == own.Source && unmarkedRoot(m) == unmarkedRoot(own) // by the kernel's word
		switch {
		case i >= len(v.Evidence.Removal.Alive) || !sameSource:
			return nil, false
		case v.Evidence.Removal.Alive[i]:
			return dead, true
		}
		dead = append(dead, m)
	}
	return nil, false
}

// remove unmounts one mount of the kubelet's namespace. The order says for which pod, and whether it may be alive.
func (i *Inspector) remove(ctx context.Context, order replaceOrder, found mountns.Mount) (fault.Applied, error) {
	order.KubeletNamespace, order.MountNamespace, order.Target, order.Remove = found.Namespace, found.Namespace, mount.IDOf(found), true
	if done, err := i.runOrder(ctx, order, "nothing"); err != nil {
		return done, err
	}
	return fault.Applied{Message: "unmounted the mount"}, nil
}

// stands reports whether the kubelet's namespace had the mount when the inspection began.
func (n *inspection) stands(want fault.Mount) bool {
	return slices.ContainsFunc(n.host.table.Mounts(), func(m mountinfo.Mount) bool {
		return m.Point == want.Point && faults.MountOf(n.host.withNamespace(m)).Same(want)
	})
}

// isRemoved reports whether a dead mount has gone, and nothing broken shows at its place.
func (n *inspection) isRemoved(want fault.Mount) (ok bool, how string) {
	if n.stands(want) {
		return false, fmt.Sprintf("the mount at %q is still there", want.Point)
	}
	for _, v := range n.volumes {
		if v.Evidence.Mount.Point != want.Point {
			continue
		}
		if v.Verdict.Code != "" || v.Evidence.Answer.State != probe.Alive {
			return false, fmt.Sprintf("the dead mount at %q is gone, and the one beneath it: %s %s", want.Point, v.Verdict.Code, v.Evidence.Answer.State)
		}
		return true, fmt.Sprintf("the dead mount at %q is gone, and the mount beneath it answers", want.Point)
	}
	return true, fmt.Sprintf("the mount at %q is gone", want.Point)
}
