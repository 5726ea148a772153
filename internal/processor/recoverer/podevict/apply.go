// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podevict

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

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
func (h *Recoverer) Apply(ctx context.Context, r processor.Request, a processor.Action) (string, error) {
	if a.Kind != Evict {
		return "", processor.Stalled(fmt.Errorf("apply action: kind %q is not known", a.Kind))
	}
	t, err := targeted(a.Target)
	if err != nil {
		return "", processor.Stalled(err)
	}
	if t.namespace != r.Pod.Namespace || t.name != r.Pod.Name {
		return "", processor.Stalled(fmt.Errorf("apply action: %s is not the pod of the Diagnosis, %s/%s", t, r.Pod.Namespace, r.Pod.Name))
	}
	done, err := h.check(ctx, r, t)
	if err != nil || done != "" {
		return done, err
	}
	return h.evict(ctx, t)
}

// check makes sure, right before, that what the plan says is still so. done says why there is nothing left to do.
func (h *Recoverer) check(ctx context.Context, r processor.Request, t target) (done string, err error) {
	o, err := optionsOf(r.Values)
	if err != nil {
		return "", err
	}
	pod, elsewhere, err := podref.Load(ctx, h.Pods, r)
	switch {
	case errors.Is(err, kubelet.ErrPodNotFound):
		return "was gone already", nil
	case err != nil:
		return "", err
	case string(pod.UID) != t.uid:
		return "was gone already: another pod has its name", nil
	case pod.DeletionTimestamp != nil:
		return "was being deleted already", nil
	case elsewhere != "":
		return "", processor.Stalled(errors.New(elsewhere))
	}
	if why := h.refusal(pod, o); why != "" {
		return "", processor.Stalled(fmt.Errorf("evict %s: %s", t, why))
	}
	findings, reasons, err := h.Judge.Unmendable(ctx, t.uid)
	if err == nil && len(findings) == 0 {
		err = processor.Stalled(fmt.Errorf("evict %s: nothing was done: %s", t, nothing(pod, reasons)))
	}
	return "", err
}

func (h *Recoverer) evict(ctx context.Context, t target) (string, error) {
	err := h.Evictor.Evict(ctx, t.namespace, t.name, t.uid)
	var held *BlockedError
	switch {
	case err == nil:
		return "evicted", nil
	case errors.Is(err, ErrGone):
		return "was gone already", nil
	case errors.As(err, &held):
		after := held.After
		if after <= 0 {
			after = tryAgain
		}
		return "", &processor.WaitingError{Err: fmt.Errorf("evict %s: %w", t, err), After: after}
	case errors.Is(err, ErrForbidden):
		return "", processor.Stalled(fmt.Errorf("evict %s: %w; %s", t, err, notAllowed))
	}
	return "", fmt.Errorf("evict %s: %w", t, err)
}
