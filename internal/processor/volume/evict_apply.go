// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
	"kubediag.org/kubediag/internal/repair"
)

// evictedIdentity names the pod of an action for people.
func evictedIdentity(p fault.Pod) string {
	return fmt.Sprintf("pod %s/%s (UID %s)", p.Namespace, p.Name, p.UID)
}

// Open implements repair.Family.
func (h *EvictRecoverer) Open() repair.Apply { return h.Apply }

// Apply judges whether the pod of the plan is still there and still as the plan says. One that has gone meanwhile, or
// is going, succeeds.
func (h *EvictRecoverer) Apply(ctx context.Context, request processor.Request, action fault.Action) (fault.Applied, error) {
	switch {
	case action.Kind != fault.Evict:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", action.Kind))
	case action.Pod == nil || action.Pod.UID == "":
		return fault.Applied{}, processor.Stalled(errors.New("apply action: no pod with a UID is named"))
	case action.Pod.Namespace != request.Pod.Namespace || action.Pod.Name != request.Pod.Name:
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: %s is not the pod of the Diagnosis, %s/%s", evictedIdentity(*action.Pod),
			request.Pod.Namespace, request.Pod.Name))
	}
	options, err := evictOptionsOf(request.Values)
	if err != nil {
		return fault.Applied{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, request)
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound):
		return fault.AlreadySo("was gone already"), nil
	case err != nil:
		return fault.Applied{}, err
	case string(pod.UID) != action.Pod.UID:
		return fault.AlreadySo("was gone already: another pod has its name"), nil
	case pod.DeletionTimestamp != nil:
		return fault.AlreadySo("was being deleted already"), nil
	case elsewhere != "":
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	if why := h.reasonToKeep(pod, options); why != "" {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %s", evictedIdentity(*action.Pod), why))
	}
	findings, reasons, err := h.Judge.Unrepairable(ctx, action.Pod.UID)
	if err == nil && len(findings) == 0 {
		err = processor.Stalled(fmt.Errorf("evict %s: nothing was done: %s", evictedIdentity(*action.Pod), nothingToEvict(pod, reasons)))
	}
	return fault.Applied{}, err
}
