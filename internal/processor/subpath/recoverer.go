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
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
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
func (h *Recoverer) Plan(ctx context.Context, request processor.Request) (processor.Plan, error) {
	options, err := parameters.Options(request.Values)
	if err != nil {
		return processor.Plan{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, request)
	if err != nil || elsewhere != "" {
		return processor.Plan{NotApplicable: elsewhere}, err
	}
	node, err := h.Kubelet.Node(ctx)
	if err != nil {
		return processor.Plan{}, err
	}
	report, err := subpath.Inspect(ctx, node, pod, request.Pod.Container)
	if err != nil {
		return processor.Plan{}, err
	}
	c := classifyBinds(node, report)
	if len(c.stale) == 0 && len(c.replacedByKubelet) > 0 {
		return processor.Plan{NotApplicable: replacedReason(pod, c.replacedByKubelet)}, nil
	}
	stale, reason := neededRepairs(pod, c.stale)
	if len(stale) == 0 {
		plan := processor.Plan{NotApplicable: reason}
		if len(report.Stale()) == 0 {
			plan.Gone = []fault.Absence{{Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: pod.Namespace, Name: pod.Name}}}
		}
		return plan, nil
	}
	plan, containers := processor.Plan{}, []string(nil)
	for _, b := range stale {
		containers = append(containers, b.Container)
		plan.Actions = append(plan.Actions, unmountAction(b, report.Namespace))
		plan.Findings = append(plan.Findings, b.Finding(pod, report.Namespace))
	}
	m := repairState{Pending: restart.PendingIn(pod, containers), Others: otherMounts(report, stale)}
	if options.BringForward {
		plan.Actions = append(plan.Actions, h.restarter().Actions(ctx, m.Pending, fault.StaleSubPath)...)
	}
	err = plan.SaveState(m)
	return plan, err
}

// replacedReason says why nothing is done about binds that the kubelet replaces.
func replacedReason(pod *corev1.Pod, renewed []subpath.Bind) string {
	var points []string
	for _, b := range renewed {
		points = append(points, strconv.Quote(b.State.Point))
	}
	return fmt.Sprintf("pod %s/%s has subPath mounts that are out of date at %s, and this kubelet replaces them itself at the container's "+
		"next start", pod.Namespace, pod.Name, strings.Join(points, ", "))
}

// neededRepairs leaves out the binds of containers that are not started again. reason says why nothing is left.
func neededRepairs(pod *corev1.Pod, stale []subpath.Bind) (left []subpath.Bind, reason string) {
	reason = fmt.Sprintf("pod %s/%s has no stale subPath mount", pod.Namespace, pod.Name)
	for _, bind := range stale {
		outlook, why := podinfo.RestartStateOf(pod, bind.Container)
		if outlook != podinfo.Finished {
			left = append(left, bind)
			continue
		}
		reason = fmt.Sprintf("pod %s/%s has a stale subPath mount, but container %q is not started again: %s. "+
			"Create the pod again", pod.Namespace, pod.Name, bind.Container, why)
	}
	return left, reason
}

// unmountAction is the action that repairs one bind.
func unmountAction(bind subpath.Bind, namespace uint64) fault.Action {
	mount := faults.MountOfState(bind.State, namespace)
	safety := bind.Reason + "; this pod's spec requests the bind; the current file or directory is bound in its place if it exists, " +
		"otherwise the kubelet binds it at the next start; running containers keep their mount"
	if bind.PeerGroup != 0 {
		safety += fmt.Sprintf("; it lies on a shared mount (peer group %d), so copies of this bind in other mount namespaces go with it",
			bind.PeerGroup)
	}
	return fault.Action{
		Kind: fault.Unmount, Target: bind.State.Point, Mount: &mount, Container: bind.Container, Fault: fault.StaleSubPath,
		Safety: safety, Loss: "nothing", Lossless: true,
	}
}
