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
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/graph"
)

// A user who applies everything at once may be faster than the manager, so a set that is missing or not ready is waited
// for.
const (
	setTimeout      = 10 * time.Second
	setPollInterval = 250 * time.Millisecond
)

// awaitSet waits for a set for which readSet has given an error, until the deadline at most.
func (x *execution) awaitSet(ctx context.Context, err error, deadline time.Time) (*graph.Graph, error) {
	until := time.Now().Add(setTimeout)
	if deadline.Before(until) {
		until = deadline
	}
	for {
		if t, ok := errors.AsType[*terminalError](err); !ok || t.reason == v1.ReasonOperationSetChanged || !time.Now().Before(until) {
			return nil, err
		}
		if err := sleep(ctx, setPollInterval); err != nil {
			return nil, err
		}
		var g *graph.Graph
		if g, err = x.readSet(ctx); err == nil {
			return g, nil
		}
	}
}

// readSet reads the OperationSet and makes its graph. If it cannot be used, the error is a *terminalError. A Diagnosis that has
// begun needs the same graph, and no more: the set was ready then.
func (x *execution) readSet(ctx context.Context) (*graph.Graph, error) {
	name, hash := x.d.Spec.Set(), x.d.Status.AdjacencyListHash
	set, err := x.runner.Store.OperationSet(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return nil, terminal(v1.ReasonOperationSetNotFound, "OperationSet %s is not found", name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading OperationSet %q: %w", name, err)
	}
	nodes := make([]graph.Node, len(set.Spec.AdjacencyList))
	for i, n := range set.Spec.AdjacencyList {
		nodes[i] = graph.Node{ID: n.ID, To: n.To, Operation: n.Operation}
	}
	g, err := graph.New(nodes)
	switch {
	case err != nil && hash == "":
		return nil, terminal(v1.ReasonOperationSetNotReady, "OperationSet %s is not ready: %s", name, strings.ReplaceAll(err.Error(), "\n", "; "))
	case hash == "" && (set.Status.ObservedGeneration != set.Generation || !set.Status.Ready):
		why := "the manager has not looked at its latest specification"
		if c := meta.FindStatusCondition(set.Status.Conditions, v1.ConditionReady); c != nil && set.Status.ObservedGeneration == set.Generation {
			why = c.Message
		}
		return nil, terminal(v1.ReasonOperationSetNotReady, "OperationSet %s is not ready: %s", name, why)
	case hash != "" && (err != nil || hash != g.Hash()):
		return nil, x.setChanged()
	}
	return g, nil
}

func (x *execution) setChanged() error {
	return terminal(v1.ReasonOperationSetChanged, "OperationSet %s specification has been changed during diagnosis execution", x.d.Spec.Set())
}

// readOperations reads the Operations of all nodes, before any of them runs.
func (x *execution) readOperations(ctx context.Context, g *graph.Graph) (map[int32]operation, error) {
	byName := map[string]operation{}
	byNode := map[int32]operation{}
	for _, n := range g.Nodes() {
		if n.ID == 0 {
			continue
		}
		op, ok := byName[n.Operation]
		if !ok {
			definition, err := x.runner.Store.Operation(ctx, n.Operation)
			if errors.Is(err, ErrNotFound) {
				return nil, terminal(v1.ReasonOperationNotFound, "Operation %s is not found: node %d of OperationSet %s names it",
					n.Operation, n.ID, x.d.Spec.Set())
			}
			if err != nil {
				return nil, fmt.Errorf("reading Operation %q: %w", n.Operation, err)
			}
			var errs field.ErrorList
			if op, errs = x.makeOperation(definition); len(errs) > 0 {
				return nil, terminal(v1.ReasonOperationInvalid, "Operation %s of node %d is invalid: %s", n.Operation, n.ID, v1.Message(errs))
			}
			byName[n.Operation] = op
		}
		byNode[n.ID] = op
	}
	return byNode, nil
}

// makeOperation makes an operation of the pipeline of its definition. The errors name fields and values.
func (x *execution) makeOperation(o *v1.Operation) (operation, field.ErrorList) {
	call, errs := o.Spec.Call()
	op := operation{Name: o.Name, Timeout: call.Timeout}
	at := field.NewPath("spec", "processor")
	agreed := x.d.Spec.Mode == v1.ModePlan || x.d.Spec.Mode == v1.ModeApprove || x.d.Spec.PlanHash != ""
	switch {
	case len(errs) > 0:
		return op, errs
	case call.Kind == v1.ProcessorBuiltIn:
	case agreed:
		return op, field.ErrorList{field.Forbidden(at, "with mode Plan or Approve, or a planHash, only built-in processors run: what another one changes "+
			"is in no plan")}
	case x.runner.External == nil:
		return op, field.ErrorList{field.Forbidden(at, "only built-in processors run here")}
	}
	if s := o.Spec.Storage; s != nil && s.HostPath != nil {
		var err error
		if op.Storage, err = x.runner.files.storageDir(s.HostPath.Path); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "storage", "hostPath", "path"), s.HostPath.Path, err.Error()))
		}
	}
	switch call.Kind {
	case v1.ProcessorBuiltIn:
		step, ok := x.runner.Registry.Lookup(call.BuiltIn)
		if !ok {
			var known []string
			for _, name := range x.runner.Registry.Names() {
				known = append(known, v1.BuiltInPathPrefix+name)
			}
			errs = append(errs, field.NotSupported(at.Child("path"), v1.BuiltInPathPrefix+call.BuiltIn, known))
		}
		op.Step = step
	case v1.ProcessorHTTP:
		op.HasSideEffects, op.Step.Processor = true, x.runner.External.Server(o.Name, call.URL)
	case v1.ProcessorScript:
		s, key := call.Script, o.Name
		if s.OperationResultKey != nil && *s.OperationResultKey != "" {
			key = *s.OperationResultKey
		}
		op.HasSideEffects, op.Step.Processor = true, x.runner.External.Script(o.Name, s.Script, s.ArgKeys, key)
	default:
		errs = append(errs, field.Forbidden(at.Child("function"), "functions are not run"))
	}
	return op, errs
}
