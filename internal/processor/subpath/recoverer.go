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
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/processor/restart"
	"kubediag.org/kubediag/internal/repair"
)

// Keys of the results.
const (
	// keyRecoverResult describes the first bind that was unmounted, keyRecoverResults all.
	keyRecoverResult  = "recover.kubernetes.subpath_remount.result"
	keyRecoverResults = "recover.kubernetes.subpath_remount.results"
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
	return []string{paramBringForward, ParamWaitSeconds}
}

func (h *Recoverer) restarter() restart.Restarter {
	return restart.Restarter{Pods: h.Pods, Runtime: h.Runtime, RunningAfter: KeyRecoverRunningAfter}
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
	plan, reason := repair.Part{}, fmt.Sprintf("pod %s/%s has no stale subPath mount", pod.Namespace, pod.Name)
	var containers []string
	var planned []int
	for _, b := range c.stale {
		found := b.Finding(pod, report.Namespace)
		action, refusal := b.Plan(pod, found)
		if refusal != "" {
			reason = refusal
			continue
		}
		containers, planned = append(containers, b.Container), append(planned, b.State.MountInfoID)
		plan.Actions, plan.Findings = append(plan.Actions, action), append(plan.Findings, found)
	}
	if len(plan.Actions) == 0 {
		plan.NotApplicable = reason
		switch why := unprovenAbsence(report); {
		case len(report.Stale()) > 0:
		case why != "":
			plan.NotApplicable = fmt.Sprintf("%s, as far as could be seen: %s", reason, why)
		default:
			plan.Gone = []fault.Absence{{Code: fault.StaleSubPath, Pod: fault.Pod{Namespace: pod.Namespace, Name: pod.Name}}}
		}
		return plan, nil
	}
	m := repairState{Pending: restart.PendingIn(pod, containers), Others: otherMounts(report, planned), Going: pod.DeletionTimestamp != nil}
	if options.BringForward {
		plan.Actions = append(plan.Actions, h.restarter().Actions(ctx, m.Pending, plan.Actions)...)
	}
	err = plan.SaveState(m)
	return plan, err
}

// unprovenAbsence says which bind could not be judged, or not by itself, and so may be stale; empty: none.
func unprovenAbsence(report *subpath.Report) (why string) {
	for _, b := range report.Binds {
		if b.Verdict == subpath.Unproven || b.Verdict == subpath.OfVolume {
			return fmt.Sprintf("the subPath bind at %q: %s", b.State.Point, b.Reason)
		}
	}
	return ""
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
