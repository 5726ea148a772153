// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podevict

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// tryAgain is how long a PodDisruptionBudget is waited for where the API server names no time. The pipeline tries a few
// times only, and other pods may take minutes to become ready.
const tryAgain = time.Minute

// target is the pod of an action.
type target struct{ namespace, name, uid string }

// String is what targeted reads.
func (t target) String() string { return fmt.Sprintf("pod %s/%s (UID %s)", t.namespace, t.name, t.uid) }

// targeted takes String apart. None of the three can have a space or a slash in it.
func targeted(text string) (target, error) {
	words := strings.Fields(text)
	if len(words) == 4 {
		namespace, name, _ := strings.Cut(words[1], "/")
		t := target{namespace, name, strings.TrimSuffix(words[3], ")")}
		if namespace != "" && name != "" && t.uid != "" && t.String() == text {
			return t, nil
		}
	}
	return target{}, fmt.Errorf("read target: %q is no pod with a UID", text)
}

// Apply evicts the pod of the plan, if it is still there and still what the plan says. One that has gone meanwhile, or
// is going, succeeds.
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, a fault.Action) (fault.Applied, error) {
	if a.Kind != fault.Evict {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: kind %q is not known", a.Kind))
	}
	t, err := targeted(a.Target)
	if err != nil {
		return fault.Applied{}, processor.Stalled(err)
	}
	if t.namespace != r.Pod.Namespace || t.name != r.Pod.Name {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("apply action: %s is not the pod of the Diagnosis, %s/%s", t, r.Pod.Namespace, r.Pod.Name))
	}
	done, err := h.check(ctx, r, t)
	if err != nil || done.Already {
		return done, err
	}
	return h.evict(ctx, t)
}

// check makes sure, right before, that what the plan says is still so. The result is Already if there is nothing left to do.
func (h *Recoverer) check(ctx context.Context, r processor.Request, t target) (done fault.Applied, err error) {
	o, err := optionsOf(r.Values)
	if err != nil {
		return fault.Applied{}, err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound):
		return fault.AlreadySo("was gone already"), nil
	case err != nil:
		return fault.Applied{}, err
	case string(pod.UID) != t.uid:
		return fault.AlreadySo("was gone already: another pod has its name"), nil
	case pod.DeletionTimestamp != nil:
		return fault.AlreadySo("was being deleted already"), nil
	case elsewhere != "":
		return fault.Applied{}, processor.Stalled(errors.New(elsewhere))
	}
	if why := h.refusal(pod, o); why != "" {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %s", t, why))
	}
	findings, reasons, err := h.Judge.Unmendable(ctx, t.uid)
	if err == nil && len(findings) == 0 {
		err = processor.Stalled(fmt.Errorf("evict %s: nothing was done: %s", t, nothing(pod, reasons)))
	}
	return fault.Applied{}, err
}

func (h *Recoverer) evict(ctx context.Context, t target) (fault.Applied, error) {
	err := h.Evictor.Evict(ctx, t.namespace, t.name, t.uid)
	var held *BlockedError
	switch {
	case err == nil:
		return fault.Applied{Message: "evicted"}, nil
	case errors.Is(err, ErrGone):
		return fault.AlreadySo("was gone already"), nil
	case errors.As(err, &held):
		after := held.After
		if after <= 0 {
			after = tryAgain
		}
		return fault.Applied{}, &processor.WaitingError{Err: fmt.Errorf("evict %s: %w", t, err), After: after}
	case errors.Is(err, ErrForbidden):
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %w; %s", t, err, notAllowed))
	}
	return fault.Applied{}, fmt.Errorf("evict %s: %w", t, err)
}
