// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package restart sees to it that containers which could not start do so after their mounts were repaired: it plans to
// have the runtime forget those that never started, and says whether they run by the pod's status.
//
// It removes nothing but the record of a container that exited and never ran, and starts none itself. It rests on the
// kubelet's back-off, which counts from the newest exited container that the runtime has a record of.
package restart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/podinfo"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

const (
	// pollInterval is how often the pod is looked at while it is waited for.
	pollInterval = time.Second
	// startInterval is how often a start that is under way is looked at, and startLimit for how long.
	startInterval, startLimit = 20 * time.Millisecond, 5 * time.Second
)

// Runtime is the container runtime of this node.
type Runtime interface {
	// Records lists the records of one container of a pod, the newest first.
	Records(ctx context.Context, podUID, container string) ([]cri.Container, error)
	// Remove removes one of them, if that container never started.
	Remove(ctx context.Context, record cri.Container) error
}

// Pending are the containers of a pod that did not run when a plan was made, and are to be started.
type Pending struct {
	PodUID     string             `json:"podUID"`
	Containers []PendingContainer `json:"waiting,omitempty"`
}

// PendingContainer is one of them.
type PendingContainer struct {
	Container string `json:"container"`
	// RuntimeIDs are the runtime's containers that the status spoke of then.
	RuntimeIDs []string `json:"past,omitempty"`
}

// PendingIn finds those among the named containers of the pod, each once.
func PendingIn(pod *corev1.Pod, names []string) Pending {
	pending := Pending{PodUID: string(pod.UID)}
	for _, name := range names {
		outlook, _ := podinfo.RestartStateOf(pod, name)
		listed := slices.ContainsFunc(pending.Containers, func(a PendingContainer) bool { return a.Container == name })
		if outlook != podinfo.Waiting || listed {
			continue
		}
		s, _ := podinfo.ContainerStatus(pod, name)
		ids := []string{s.ContainerID}
		for _, t := range terminatedStates(s) {
			ids = append(ids, t.ContainerID)
		}
		pending.Containers = append(pending.Containers, PendingContainer{Container: name, RuntimeIDs: ids})
	}
	return pending
}

// Restarter knows the pod and its records. Its methods may be called by several goroutines.
type Restarter struct {
	Pods kubelet.Pods
	// Runtime is nil if there is none; then no record is removed.
	Runtime Runtime
	// RunningAfter is the key of the result that says for how many seconds the containers were waited for.
	RunningAfter string
}

// Actions plans to forget the containers that never started, from the newest back to one that has run: the kubelet
// counts its back-off from them. One that is being started may fail yet. If the runtime does not answer, the back-off
// is waited for. The containers wait for these repairs.
func (s Restarter) Actions(ctx context.Context, w Pending, repairs []fault.Action) []fault.Action {
	if s.Runtime == nil {
		return nil
	}
	var actions []fault.Action
	for _, c := range w.Containers {
		var served []fault.Key // the faults that keep it from its start: its own, and those of volumes for all containers
		for _, a := range repairs {
			for _, key := range a.For {
				if key.Container == c.Container || key.Container == "" {
					served = append(served, key)
				}
			}
		}
		records, err := s.Runtime.Records(ctx, w.PodUID, c.Container)
		if err != nil {
			return actions
		}
		for _, record := range records {
			if !record.NeverStarted() && !record.Starting() {
				break
			}
			actions = append(actions, fault.Action{
				Kind: fault.RemoveContainerRecord, For: served, Target: record.ID, Record: record.ID, Container: c.Container,
				Safety:   "this container has exited and never ran; without its record the kubelet does not wait for its back-off",
				Loss:     "nothing but the restart count that is shown, which is counted from the records that are left",
				Lossless: true,
			})
		}
	}
	return actions
}

// RemoveRecord implements repair.Records.
func (s Restarter) RemoveRecord(ctx context.Context, r processor.Request, a fault.Action) string {
	pod, elsewhere, err := podref.Load(ctx, s.Pods, r)
	switch {
	case err != nil:
		return "left alone: " + err.Error()
	case elsewhere != "":
		return "left alone: " + elsewhere
	}
	return s.removeRecord(ctx, pod, a)
}

// removeRecord removes such a record, and those of starts that have failed since the plan was made: one that was under
// way when the mounts were repaired may still have met them as they were.
func (s Restarter) removeRecord(ctx context.Context, pod *corev1.Pod, a fault.Action) string {
	if s.Runtime == nil {
		return "left alone: no container runtime is known"
	}
	record := cri.Container{ID: a.Record, PodUID: string(pod.UID), Name: a.Container}
	later, err := s.laterFailures(ctx, record)
	if err != nil {
		return "left alone: " + err.Error()
	}
	removed := ""
	for _, r := range later {
		if err := calls.From(ctx).Did("RemoveContainer", r.ID, s.Runtime.Remove(ctx, r)); err != nil {
			return "left alone: " + err.Error() + removed
		}
		removed += "; removed is " + r.ID + " of a start that has failed since"
	}
	if err := calls.From(ctx).Did("RemoveContainer", record.ID, s.Runtime.Remove(ctx, record)); err != nil {
		return "left alone: " + err.Error() + removed
	}
	return "removed" + removed
}

// laterFailures returns the records of starts that have failed after that of which this is the record, once none is
// under way.
func (s Restarter) laterFailures(ctx context.Context, record cri.Container) (records []cri.Container, err error) {
	_, err = processor.Poll(ctx, startInterval, startLimit, func() (bool, error) {
		records, err = s.Runtime.Records(ctx, record.PodUID, record.Name)
		return len(records) == 0 || !records[0].Starting(), err
	})
	if err != nil {
		return nil, err
	}
	known := slices.IndexFunc(records, func(r cri.Container) bool { return r.ID == record.ID || !r.NeverStarted() })
	if known < 0 {
		known = len(records) // the runtime keeps the newest only
	}
	return records[:known], nil
}

// SamePod returns the pod, if it is still the one with that UID, and on this node. It is not worth another try if it is
// not.
func (s Restarter) SamePod(ctx context.Context, r processor.Request, uid string) (*corev1.Pod, error) {
	pod, elsewhere, err := podref.Load(ctx, s.Pods, r)
	switch {
	case err != nil:
		return nil, err
	case elsewhere != "":
		return nil, processor.Stalled(errors.New(elsewhere))
	case string(pod.UID) != uid:
		return nil, processor.Stalled(fmt.Errorf("get pod %s/%s: it was replaced: UID %q was planned for, %q is there now", pod.Namespace,
			pod.Name, uid, pod.UID))
	}
	return pod, nil
}

// Conclude marks the findings of a plan that is proven as healed. If containers are to be started, they are once those have: the driver
// waits for that, unless the options say to wait for none. left are faults that stay.
func (s Restarter) Conclude(request processor.Request, pending Pending, options Options, proven processor.Result, left ...fault.Finding) processor.Result {
	result := func(open func(fault.Finding) bool) processor.Result {
		return processor.Result{Values: proven.Values, Findings: append(processor.MarkHealed(proven.Findings, open), left...)}
	}
	if len(pending.Containers) == 0 {
		return result(nil)
	}
	unawaited := result(pending.NeedsMountOf)
	if options.Wait == 0 {
		return unawaited
	}
	var missing []string
	unawaited.Wait = &processor.Wait{
		Limit: options.Wait, Interval: pollInterval,
		Look: func(ctx context.Context) (bool, error) {
			pod, err := s.SamePod(ctx, request, pending.PodUID)
			if err != nil {
				return false, err
			}
			if missing = pending.notStarted(pod); len(missing) == 0 {
				missing = s.confirmNotStarted(ctx, pod, pending)
			}
			return len(missing) == 0, nil
		},
		End: func(_ context.Context, done bool, waited time.Duration) (processor.Result, error) {
			if !done {
				return processor.Result{}, processor.Stalled(fmt.Errorf("wait for pod %s/%s: its mounts are repaired, but after %.0f s %s",
					request.Pod.Namespace, request.Pod.Name, waited.Seconds(), strings.Join(missing, ", ")))
			}
			proven.Values[s.RunningAfter] = fmt.Sprintf("%.1f", waited.Seconds())
			return result(nil), nil
		},
	}
	return unawaited
}

// NeedsMountOf reports whether one of the containers may want the mount of a finding: one on the host is any
// container's.
func (p Pending) NeedsMountOf(f fault.Finding) bool {
	return f.Container == "" || slices.ContainsFunc(p.Containers, func(a PendingContainer) bool { return a.Container == f.Container })
}

// confirmNotStarted looks at the pod again if it may only be remembered that its containers run.
func (s Restarter) confirmNotStarted(ctx context.Context, pod *corev1.Pod, pending Pending) []string {
	source, ok := s.Pods.(kubelet.FreshPods)
	if !ok {
		return nil
	}
	now, err := source.FreshPod(ctx, pod.Namespace, pod.Name)
	switch {
	case err != nil:
		return []string{fmt.Sprintf("it could not be seen whether they run: %v", err)}
	case now.UID != pod.UID:
		return []string{fmt.Sprintf("the pod was replaced: it has UID %q now", now.UID)}
	}
	return pending.notStarted(now)
}

// notStarted describes the containers that have not been started since the plan was made.
func (p Pending) notStarted(pod *corev1.Pod) []string {
	var missing []string
	for _, c := range p.Containers {
		s, _ := podinfo.ContainerStatus(pod, c.Container)
		if startedSince(s, c.RuntimeIDs) {
			continue
		}
		text := fmt.Sprintf("container %q is still not running: %s", c.Container, podinfo.DescribeStatus(s))
		if outlook, why := podinfo.RestartStateOf(pod, c.Container); outlook == podinfo.Finished {
			text += ", and it is not started again: " + why
		}
		missing = append(missing, text)
	}
	return missing
}

// startedSince reports whether a container runs, or has run and ended since the plan was made.
func startedSince(s corev1.ContainerStatus, past []string) bool {
	if s.State.Running != nil {
		return true
	}
	return slices.ContainsFunc(terminatedStates(s), func(t *corev1.ContainerStateTerminated) bool {
		neverRan := t.StartedAt.Unix() <= 0 || t.Reason == "StartError" || t.Reason == "ContainerCannotRun"
		return !neverRan && !slices.Contains(past, t.ContainerID)
	})
}

func terminatedStates(s corev1.ContainerStatus) []*corev1.ContainerStateTerminated {
	all := []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated}
	return slices.DeleteFunc(all, func(t *corev1.ContainerStateTerminated) bool { return t == nil })
}
