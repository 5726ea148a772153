// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
)

// forgetAfter is how long an observation of a node is kept after the last read of its Lease.
const forgetAfter = time.Hour

// Agents knows which agents are alive. It reads a Lease only when a Diagnosis is unfinished on its node, so that its
// work grows with the Diagnoses and not with the nodes.
//
// The clocks of nodes are not trusted. An agent is lost when its Lease has not changed for as long as the Lease says,
// since this process first saw it so, by its own clock. A manager that has just become the leader therefore gives
// every agent its full time.
type Agents struct {
	Reader client.Reader
	Clock  clock.PassiveClock
	// Namespace is where the Leases are.
	Namespace string
	// LeaseDuration is the time for which a renewal counts if the Lease has none.
	LeaseDuration time.Duration
	// CheckEvery is the time between two checks of an unfinished Diagnosis.
	CheckEvery time.Duration

	mu           sync.Mutex
	observations map[string]leaseObservation
}

// leaseObservation is the last observation of the Lease of a node.
type leaseObservation struct {
	renewed  time.Time // by the clock of the agent; zero: there is no Lease
	duration time.Duration
	since    time.Time // when this was first seen, by our clock
	asked    time.Time // when the Lease was last read, by our clock
}

// agentState is the state of the agent of a node. An agent that is neither Alive nor Lost has no Lease, but not for
// long.
type agentState struct {
	Node        string
	Alive, Lost bool
	// Renewed is when the agent last renewed its Lease, by its own clock. Zero: there is no Lease.
	Renewed time.Time
}

// String says that the agent does not answer, and since when.
func (a agentState) String() string {
	if a.Renewed.IsZero() {
		return fmt.Sprintf("No agent answers on node %s: it has no Lease %s", a.Node, v1.AgentLeaseName(a.Node))
	}
	return fmt.Sprintf("No agent answers on node %s since %s", a.Node, a.Renewed.UTC().Format(time.RFC3339))
}

// stateOf returns the state of the agent of a node. It reads the Lease of a node at most twice per CheckEvery.
func (a *Agents) stateOf(ctx context.Context, node string) (agentState, error) {
	now := a.Clock.Now()
	a.mu.Lock()
	seen, known := a.observations[node]
	a.mu.Unlock()
	if !known || now.Sub(seen.asked) >= a.CheckEvery/2 {
		var lease coordinationv1.Lease
		err := a.Reader.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: v1.AgentLeaseName(node)}, &lease)
		if err != nil && !apierrors.IsNotFound(err) {
			return agentState{}, fmt.Errorf("reading lease of node %q: %w", node, err)
		}
		duration, renewed := a.LeaseDuration, time.Time{}
		if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
			duration = time.Duration(*seconds) * time.Second
		}
		if holder, at := lease.Spec.HolderIdentity, lease.Spec.RenewTime; holder != nil && *holder == node && at != nil {
			renewed = at.Time
		}
		if !known || !renewed.Equal(seen.renewed) {
			seen = leaseObservation{renewed: renewed, since: now}
		}
		seen.duration, seen.asked = duration, now
		a.mu.Lock()
		defer a.mu.Unlock()
		maps.DeleteFunc(a.observations, func(_ string, old leaseObservation) bool { return now.Sub(old.asked) > forgetAfter })
		if a.observations == nil {
			a.observations = map[string]leaseObservation{}
		}
		a.observations[node] = seen
	}
	lost := now.Sub(seen.since) >= seen.duration
	return agentState{Node: node, Renewed: seen.renewed, Lost: lost, Alive: !lost && !seen.renewed.IsZero()}, nil
}
