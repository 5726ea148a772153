// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Verify proves that the planned mounts are gone and no other mount of the pod is, and waits until the containers that
// could not start have. The faults of containers that are not waited for are not called healed.
func (h *Recoverer) Verify(ctx context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	options, err := parameters.Options(request.Values)
	if err != nil {
		return processor.Result{}, err
	}
	var state repairState
	if err := plan.LoadState(&state); err != nil {
		return processor.Result{}, err
	}
	if err := h.verifyPod(ctx, request, state, plan); err != nil {
		return processor.Result{}, err
	}
	values, err := resultValues(plan)
	if err != nil {
		return processor.Result{}, err
	}
	healed, running, err := h.restarter().Conclude(ctx, request, state.Pending, options, plan.Findings)
	if err != nil {
		return processor.Result{}, err
	}
	if running != "" {
		values[KeyRecoverRunningAfter] = running
	}
	return processor.Result{Values: values, Findings: healed}, nil
}

// verifyPod makes sure of the mounts of the pod. One that was being deleted may have gone meanwhile, and then its mounts have.
func (h *Recoverer) verifyPod(ctx context.Context, request processor.Request, state repairState, plan repair.Part) error {
	node, err := h.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	if state.Going {
		pod, _, err := podref.Load(ctx, h.Pods, request)
		if errors.Is(err, kubelet.ErrPodNotFound) || err == nil && (pod == nil || string(pod.UID) != state.PodUID) {
			return verifyUnmounted(ctx, node, plan)
		}
	}
	pod, err := h.restarter().SamePod(ctx, request, state.PodUID)
	if err != nil {
		return err
	}
	if err := h.verifyMounts(ctx, node, pod, plan); err != nil {
		return err
	}
	return state.verifyOthers(ctx, node, pod)
}

// verifyUnmounted makes sure that nothing is mounted at the places of the plan.
func verifyUnmounted(ctx context.Context, node *kubelet.Node, plan repair.Part) error {
	table, err := node.Mounts(ctx)
	if err != nil {
		return err
	}
	for _, action := range plan.Actions {
		if action.Mount != nil && len(table.All(action.Mount.Point)) > 0 {
			return processor.Stalled(fmt.Errorf("verify unmount of %q: its pod is gone, and something is mounted there", action.Mount.Point))
		}
	}
	return nil
}

// verifyMounts makes sure that the planned mounts are gone, and that no other stale one has come to light in their
// places.
func (h *Recoverer) verifyMounts(ctx context.Context, n *kubelet.Node, pod *corev1.Pod, p repair.Part) error {
	unmounts := slices.DeleteFunc(slices.Clone(p.Actions), func(a fault.Action) bool { return a.Mount == nil })
	var points []string
	for _, action := range unmounts {
		points = append(points, action.Mount.Point)
	}
	asked, err := h.ask(ctx, n, pod, points)
	if err != nil {
		return err
	}
	return stalled(n.Do(ctx, func() error {
		for _, action := range unmounts {
			if err := subpath.Verify(n, pod, action, asked); err != nil {
				return err
			}
		}
		return nil
	}))
}

// verifyOthers makes sure that the mounts that were none of the plan's business are still there. Those of a pod that is
// being deleted go anyway.
func (s repairState) verifyOthers(ctx context.Context, n *kubelet.Node, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	table, err := n.Mounts(ctx)
	if err != nil {
		return err
	}
	for _, o := range s.Others {
		if !o.isMounted(table) {
			return processor.Stalled(fmt.Errorf("verify mounts of the pod: mount %d at %q was not to be touched, and is gone", o.ID, o.Point))
		}
	}
	return nil
}

func resultValues(p repair.Part) (map[string]string, error) {
	var sentences []string
	for i, action := range p.Actions {
		done := p.Outcome(i)
		switch {
		case action.Kind != fault.Unmount || action.Mount == nil:
		case done.Already:
			sentences = append(sentences, fmt.Sprintf("did not umount %s on host: %s", action.Mount.Point, done.Message))
		default:
			sentences = append(sentences, fmt.Sprintf("Succeesfully umount %s on host", action.Mount.Point))
		}
	}
	if len(sentences) == 0 {
		return nil, processor.Stalled(errors.New("read plan: it unmounts nothing"))
	}
	return processor.SentenceValues(keyRecoverResult, keyRecoverResults, sentences)
}
