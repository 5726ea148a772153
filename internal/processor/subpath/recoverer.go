// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// KeyRecoverResult describes the first bind that was unmounted, KeyResults all.
	KeyRecoverResult  = "recover.kubernetes.subpath_remount.result"
	KeyRecoverResults = "recover.kubernetes.subpath_remount.results"
	// KeyRecoverRunningAfter is how many seconds after the unmount all containers that could not start were seen to
	// have started. It is absent if there was none, or the run did not wait.
	KeyRecoverRunningAfter = "recover.kubernetes.subpath_remount.running_after_seconds"
)

// Recoverer is the recoverer subpathRemountRecover.
//
// It repairs kubernetes#68211: it unmounts the stale subPath binds of a pod, so that the kubelet binds them again. Then
// it brings the next start of the containers forward that could not start. It finds its targets in the pod's spec, the
// live mount table, and the kernel's answer about each mount; parameters, results of earlier operations and messages
// choose nothing. It unmounts a mount only if that is still the planned one, and still stale. It rests on umount2(2),
// and on the kubelet's back-off, which counts from the newest exited container in the runtime's records.
type Recoverer struct {
	Pods    kubelet.Pods
	Kubelet kubelet.Locator
	// Runtime is nil if there is none; no start is brought forward then.
	Runtime restart.Runtime
	// Sources are those of the Diagnoser.
	Sources subpath.Sources
}

// Name is subpathRemountRecover.
func (*Recoverer) Name() string { return "subpathRemountRecover" }

// Parameters are those that it reads.
func (*Recoverer) Parameters() []string {
	return []string{ParamBringForward, ParamWaitSeconds}
}

func (h *Recoverer) restarter() restart.Restarter {
	return restart.Restarter{Pods: h.Pods, Runtime: h.Runtime}
}

// Plan looks again, and plans an unmount for each stale bind of a container that is to be started again. Then it
// plans the removal of the runtime's records of the ones that never started.
func (h *Recoverer) Plan(ctx context.Context, request processor.Request) (repair.Part, error) {
	options, err := parameters.Options(request.Values)
	if err != nil {
		return repair.Part{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, request)
	if err != nil || elsewhere != "" {
		return repair.Part{NotApplicable: elsewhere}, err
	}
	node, err := h.Kubelet.Node(ctx)
	if err != nil {
		return repair.Part{}, err
	}
	report, err := subpath.Inspect(ctx, node, h.Sources, pod, request.Pod.Container)
	if err != nil {
		return repair.Part{}, err
	}
	c := classifyBinds(pod, report)
	if len(c.stale) == 0 && len(c.leftToKubelet) > 0 {
		return repair.Part{NotApplicable: leftReason(pod, c.leftToKubelet)}, nil
	}
	stale, reason := neededRepairs(pod, c.stale)
	if len(stale) == 0 {
		plan := repair.Part{NotApplicable: reason}
		if len(report.Stale()) == 0 {
			plan.Gone = []fault.Absence{{Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: pod.Namespace, Name: pod.Name}}}
		}
		return plan, nil
	}
	plan, containers := repair.Part{}, []string(nil)
	for _, b := range stale {
		containers = append(containers, b.Container)
		found := b.Finding(pod, report.Namespace)
		plan.Actions = append(plan.Actions, unmountAction(b, found))
		plan.Findings = append(plan.Findings, found)
	}
	m := repairState{Pending: restart.PendingIn(pod, containers), Others: otherMounts(report, stale), Going: pod.DeletionTimestamp != nil}
	if options.BringForward {
		plan.Actions = append(plan.Actions, h.restarter().Actions(ctx, m.Pending, plan.Actions)...)
	}
	err = plan.SaveState(m)
	return plan, err
}

// leftReason says why nothing is done about binds that are left to the kubelet.
func leftReason(pod *corev1.Pod, left []subpath.Bind) string {
	var points []string
	for _, b := range left {
		points = append(points, strconv.Quote(b.State.Point))
	}
	why := left[0].HabitReason
	if pod.DeletionTimestamp != nil {
		why = "its container is not started again: the pod is being deleted, and such a mount does not keep it from going"
	}
	return fmt.Sprintf("pod %s/%s has subPath mounts that are out of date at %s, and %s", pod.Namespace, pod.Name, strings.Join(points, ", "), why)
}

// neededRepairs leaves out the binds of containers that are not started again, unless they keep a pod from going whose last
// container has ended. reason says why nothing is left.
func neededRepairs(pod *corev1.Pod, stale []subpath.Bind) (left []subpath.Bind, reason string) {
	reason = fmt.Sprintf("pod %s/%s has no stale subPath mount", pod.Namespace, pod.Name)
	for _, bind := range stale {
		outlook, why := podinfo.RestartStateOf(pod, bind.Container)
		switch {
		case bind.MayBeLastMount():
			reason = fmt.Sprintf("pod %s/%s has a stale subPath mount at %q, which is left alone: no other mount of its file system is known, and the "+
				"unmount of the last one can wait for the server", pod.Namespace, pod.Name, bind.State.Point)
		case bind.KeepsPod && bind.StillRuns == "", !bind.KeepsPod && outlook != podinfo.Finished:
			left = append(left, bind)
		case bind.KeepsPod:
			reason = fmt.Sprintf("pod %s/%s is being deleted and has a stale subPath mount, which stays as long as the pod may use it: %s", pod.Namespace,
				pod.Name, bind.StillRuns)
		default:
			reason = fmt.Sprintf("pod %s/%s has a stale subPath mount, but container %q is not started again: %s. Create the pod again",
				pod.Namespace, pod.Name, bind.Container, why)
		}
	}
	return left, reason
}

// unmountAction is the action that repairs one bind.
func unmountAction(bind subpath.Bind, found fault.Finding) fault.Action {
	safety := bind.Reason + "; this pod's spec requests the bind; "
	switch {
	case bind.KeepsPod:
		safety += "the pod is being deleted, and its last container has ended: no process of the node is in a control group of it"
	case bind.LocalFileSystem():
		safety += "the current file or directory is bound in its place if it exists, otherwise the kubelet binds it at the next start; running " +
			"containers keep their mount"
	default:
		safety += "the kubelet binds the current file or directory at the next start; running containers keep their mount"
	}
	if bind.PeerGroup != 0 {
		safety += fmt.Sprintf("; it lies on a shared mount (peer group %d), so copies of this bind in other mount namespaces go with it",
			bind.PeerGroup)
	}
	return fault.Action{
		Kind: fault.Unmount, For: []fault.Key{found.Key()}, Target: bind.State.Point, Mount: &found.Mount,
		Safety: safety, Loss: "nothing", Lossless: true,
	}
}
