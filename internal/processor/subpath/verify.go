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

// Verify proves that the planned mounts are gone and no other mount of the pod is. The containers that could not start
// are to be waited for. The faults of those that are not are not called healed.
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
	return h.restarter().Conclude(request, state.Pending, options, processor.Result{Values: values, Findings: plan.Findings}), nil
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
			table, err := node.Mounts(ctx)
			if err != nil {
				return err
			}
			for _, a := range plan.Actions {
				if a.Mount != nil && len(table.All(a.Mount.Point)) > 0 {
					return processor.Stalled(fmt.Errorf("verify unmount of %q: its pod is gone, and something is mounted there", a.Mount.Point))
				}
			}
			return nil
		}
	}
	pod, err := h.restarter().SamePod(ctx, request, state.PodUID)
	if err != nil {
		return err
	}
	if err := h.verifyMounts(ctx, node, pod, plan); err != nil {
		return err
	}
	// The mounts that were none of the plan's business, or others in their places, are still there: the kubelet
	// itself renews binds of subPaths when it starts a container. Those of a pod that is being deleted go
	// anyway.
	if pod.DeletionTimestamp != nil {
		return nil
	}
	table, err := node.Mounts(ctx)
	if err != nil {
		return err
	}
	for _, o := range state.Others {
		if m, ok := table.ByID(o.ID); (!ok || m.Point != o.Point) && len(table.All(o.Point)) == 0 {
			return processor.Stalled(fmt.Errorf("verify mounts of the pod: mount %d at %q was not to be touched, and is gone", o.ID, o.Point))
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
