// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// Open implements repair.Family. The actions share one look at the pod's volumes, and each is judged again.
func (h *RebindRecoverer) Open() repair.Apply {
	apply := h.Inspector.Open()
	return func(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
		return h.apply(ctx, r, a, apply)
	}
}

// apply does one action of a plan. It succeeds if that is done already, and refuses if the target has changed since the
// plan.
func (h *RebindRecoverer) apply(ctx context.Context, r processor.Request, action fault.Action,
	onVolume func(context.Context, fault.Action) (fault.Applied, error)) (fault.Applied, error) {
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
	switch {
	case action.Kind != fault.Abort && action.Kind != fault.Replace && action.Kind != fault.Unmount:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
	case action.Kind == fault.Abort && !options.abort:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("abort connection of %q: parameter %s does not ask for it", action.Target, paramRebindAbort))
	case action.Mount == nil:
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no mount is named"))
	}
	done, err := onVolume(ctx, actionOfPod(action, string(pod.UID))) // its mount must be a broken one of a volume of the pod as it is now
	if !errors.Is(err, volume.ErrRefused) {
		return done, err
	}
	err = fmt.Errorf("nothing was touched: %w", err)
	if errors.Is(err, volume.ErrHung) || errors.Is(err, volume.ErrInUse) {
		return done, &processor.WaitingError{Err: err, After: refusalRetry}
	}
	return done, processor.Stalled(err)
}

// refusalRetry is the wait after a mount did not answer, or was in use.
const refusalRetry = 5 * time.Second

// actionOfPod is the action about a volume of that pod, whichever pod it was planned for.
func actionOfPod(a fault.Action, podUID string) fault.Action {
	a.Pod = &fault.Pod{UID: podUID}
	return a
}
