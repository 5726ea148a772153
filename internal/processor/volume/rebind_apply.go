// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Open implements repair.Family. Each action looks for itself.
func (h *RebindRecoverer) Open(_ context.Context, r processor.Request, p repair.Part) (repair.Work, error) {
	return repair.EachAlone(p, func(ctx context.Context, a fault.Action) (fault.Applied, error) { return h.Apply(ctx, r, a) }), nil
}

// Apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *RebindRecoverer) Apply(ctx context.Context, r processor.Request, action fault.Action) (fault.Applied, error) {
	options, err := rebindOptionsOf(r.Values)
	if err != nil {
		return fault.Applied{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	if err != nil {
		return fault.Applied{}, err
	}
	if elsewhere == "" {
		if action.Kind == fault.RemoveContainerRecord {
			return fault.Applied{}, nil
		}
		if action.Kind != fault.Unmount { // a dead mount may go with its pod
			elsewhere = notRunningReason(pod)
		}
	}
	if elsewhere != "" {
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	switch action.Kind {
	case fault.Abort:
		if !options.abort {
			return fault.Applied{}, processor.Stalled(fmt.Errorf("abort connection of %q: parameter %s does not ask for it",
				action.Target, ParamRebindAbort))
		}
		return h.applyOnPod(ctx, pod, action)
	case fault.Replace, fault.Unmount:
		return h.applyOnPod(ctx, pod, action)
	}
	return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
}

// applyOnPod has an action done whose mount must be, now, a broken one of a volume of the pod as it is now.
func (h *RebindRecoverer) applyOnPod(ctx context.Context, pod *corev1.Pod, a fault.Action) (fault.Applied, error) {
	if a.Mount == nil {
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	done, err := h.Inspector.Apply(ctx, actionOfPod(a, string(pod.UID)))
	if errors.Is(err, volume.ErrRefused) {
		err = processor.Stalled(fmt.Errorf("nothing was touched: %w", err))
	}
	return done, err
}

// actionOfPod is the action about a volume of that pod, whichever pod it was planned for.
func actionOfPod(a fault.Action, podUID string) fault.Action {
	a.Pod = &fault.Pod{UID: podUID}
	return a
}
