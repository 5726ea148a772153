// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
	"kubediag.org/kubediag/internal/processor"
)

// A user who applies everything at once may be faster than the manager, so a set that is missing or not ready is waited
// for.
const (
	patience = 10 * time.Second
	poll     = 250 * time.Millisecond
)

// awaitSet waits for a set for which set has given an error.
func (x *execution) awaitSet(ctx context.Context, err error) (*graph.Graph, error) {
	until := time.Now().Add(patience)
	if d := x.deadline(); d.Before(until) {
		until = d
	}
	for {
		var v *verdict
		if !errors.As(err, &v) || v.reason == v1.ReasonOperationSetChanged || !time.Now().Before(until) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(poll):
		}
		var g *graph.Graph
		if g, err = x.set(ctx); err == nil {
			return g, nil
		}
	}
}

// set reads the OperationSet and makes its graph. If it cannot be used, the error is a verdict. A Diagnosis that has
// begun needs the same graph, and no more: the set was ready then.
func (x *execution) set(ctx context.Context) (*graph.Graph, error) {
	name, hash := x.d.Spec.Set(), x.d.Status.AdjacencyListHash
	set, err := x.Store.OperationSet(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil, end(v1.ReasonOperationSetNotFound, "OperationSet %s is not found", name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading OperationSet %q: %w", name, err)
	}
	g, err := graph.New(nodesOf(set))
	switch {
	case err != nil && hash == "":
		return nil, end(v1.ReasonOperationSetNotReady, "OperationSet %s is not ready: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	case hash == "":
		if why := unready(set); why != "" {
			return nil, end(v1.ReasonOperationSetNotReady, "OperationSet %s is not ready: %s", name, why)
		}
	case err != nil || hash != g.Hash():
		return nil, x.changed()
	}
	return g, nil
}

func nodesOf(set *v1.OperationSet) []graph.Node {
	nodes := make([]graph.Node, len(set.Spec.AdjacencyList))
	for i, n := range set.Spec.AdjacencyList {
		nodes[i] = graph.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	return nodes
}

// unready says why a set cannot be used yet; empty if it can.
func unready(set *v1.OperationSet) string {
	if set.Status.ObservedGeneration == set.Generation {
		if set.Status.Ready {
			return ""
		}
		if c := meta.FindStatusCondition(set.Status.Conditions, v1.ConditionReady); c != nil {
			return c.Message
		}
	}
	return "the manager has not looked at its latest specification"
}

func (x *execution) changed() error {
	return end(v1.ReasonOperationSetChanged, "OperationSet %s specification has been changed during diagnosis execution", x.d.Spec.Set())
}

// job makes the job of the Diagnosis, or says with a verdict why there is none.
func (x *execution) job(ctx context.Context, g *graph.Graph) (job, error) {
	if errs := x.d.Spec.Validate(); len(errs) > 0 {
		return job{}, end(v1.ReasonInvalid, "%s", v1.Message(errs))
	}
	if x.d.Spec.Mode == v1.ModeApprove && x.Approvals == nil {
		return job{}, end(v1.ReasonInvalid, "spec.mode: a plan cannot be approved without an API server: use mode Plan")
	}
	x.graph, x.d.Status.AdjacencyListHash = g, g.Hash()
	operations, err := x.operations(ctx)
	return job{
		Request: x.request(), Graph: g, Operations: operations, Deadline: x.deadline(),
		PlanOnly: x.d.Spec.Mode == v1.ModePlan,
	}, err
}

func (x *execution) request() processor.Request {
	r := processor.Request{
		Diagnosis: processor.Diagnosis{UID: string(x.d.UID), Namespace: x.d.Namespace, Name: x.d.Name},
		Node:      x.Node,
		Values:    x.d.Spec.Parameters,
	}
	if p := x.d.Spec.PodReference; p != nil {
		r.Pod = processor.Pod{Namespace: p.Namespace, Name: p.Name, Container: p.Container}
	}
	return r
}

// passed says which deadline has passed, as the user knows it.
func (x *execution) passed() string {
	if seconds := x.d.Spec.ActiveDeadlineSeconds; seconds != nil {
		return fmt.Sprintf("the deadline of the Diagnosis has passed (spec.activeDeadlineSeconds: %d)", *seconds)
	}
	return fmt.Sprintf("the deadline of the Diagnosis has passed (the agent's --diagnosis-timeout: %s)", x.DefaultDeadline)
}

// deadline counts from when the Diagnosis was first taken, however often it was begun again. It does not pass while a plan
// waits for its approval, and counts again from then on.
func (x *execution) deadline() time.Time {
	limit := x.DefaultDeadline
	if seconds := x.d.Spec.ActiveDeadlineSeconds; seconds != nil {
		limit = time.Duration(*seconds) * time.Second
	}
	from := x.d.Status.StartTime.Time
	if a := x.d.Status.Approval; a != nil {
		from = time.Now()
		if a.ApproveTime != nil {
			from = a.ApproveTime.Time
		}
	}
	return from.Add(limit)
}
