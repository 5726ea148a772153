// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/linux/calls"
	"kubediag.org/kubediag/internal/processor"
)

// The errors of an Evictor, wrapped.
var (
	// ErrGone: there is no such pod any more, or another one has its name.
	ErrGone = errors.New("pod is gone")
	// ErrForbidden: the API server does not let us.
	ErrForbidden = errors.New("eviction is forbidden")
)

// EvictionsNotAllowed says how to allow evictions.
const EvictionsNotAllowed = "evicting pods is not allowed: to allow it, start the agent with --allow-eviction and give it the right to create " +
	"pods/eviction, as config/overlays/eviction does"

// BlockedError is the error of an Evictor if the pod may not go now, because of a PodDisruptionBudget.
type BlockedError struct {
	// Reason is the API server's, with the name of the budget if it gives one.
	Reason string
	// After is when to try again; 0 if the API server does not say.
	After time.Duration
}

// Error is the reason.
func (e *BlockedError) Error() string { return e.Reason }

// Evictor evicts pods.
type Evictor interface {
	// Evict asks once. nil: the pod goes. Otherwise ErrGone, ErrForbidden, a *BlockedError, or a failure to try again.
	Evict(ctx context.Context, namespace, name, uid string) error
}

// Records has the container runtime's records of the containers of this node.
type Records interface {
	// RemoveRecord does an action that removes the record of a container which never started, and says how it went. The kubelet's
	// back-off is waited for if that is not possible, so it does not fail.
	RemoveRecord(ctx context.Context, r processor.Request, a fault.Action) (message string)
}

// evictRetry is the time before the next try of an eviction that a PodDisruptionBudget refuses, if the API server names no
// time. A driver tries a few times only, and other pods may take minutes to become ready.
const evictRetry = time.Minute

// evict evicts the pod of an action that has been judged.
func (e *Engine) evict(ctx context.Context, pod fault.Pod) (fault.Applied, error) {
	identity := fmt.Sprintf("pod %s/%s (UID %s)", pod.Namespace, pod.Name, pod.UID)
	if e.Evictor == nil {
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %s", identity, EvictionsNotAllowed))
	}
	err := calls.From(ctx).Did("create pods/eviction", identity, e.Evictor.Evict(ctx, pod.Namespace, pod.Name, pod.UID))
	blocked, isBlocked := errors.AsType[*BlockedError](err)
	switch {
	case err == nil:
		return fault.Applied{Message: "evicted"}, nil
	case errors.Is(err, ErrGone):
		return fault.AlreadySo("was gone already"), nil
	case isBlocked:
		after := blocked.After
		if after <= 0 {
			after = evictRetry
		}
		return fault.Applied{}, &processor.WaitingError{Err: fmt.Errorf("evict %s: %w", identity, err), After: after}
	case errors.Is(err, ErrForbidden):
		return fault.Applied{}, processor.Stalled(fmt.Errorf("evict %s: %w; %s", identity, err, EvictionsNotAllowed))
	}
	return fault.Applied{}, fmt.Errorf("evict %s: %w", identity, err)
}
