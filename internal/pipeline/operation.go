// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/processor"
)

// operations reads what runs at every node, before anything does.
func (x *execution) operations(ctx context.Context) (map[int32]operation, error) {
	byName := map[string]operation{}
	byNode := map[int32]operation{}
	for _, n := range x.graph.Nodes() {
		if n.ID == 0 {
			continue
		}
		op, ok := byName[n.Operation]
		if !ok {
			definition, err := x.Store.Operation(ctx, n.Operation)
			if errors.Is(err, ErrNotFound) {
				return nil, end(v1.ReasonOperationNotFound, "Operation %s is not found: node %d of OperationSet %s names it",
					n.Operation, n.ID, x.d.Spec.Set())
			}
			if err != nil {
				return nil, fmt.Errorf("reading Operation %q: %w", n.Operation, err)
			}
			var errs field.ErrorList
			if op, errs = x.operation(definition); len(errs) > 0 {
				return nil, end(v1.ReasonOperationInvalid, "Operation %s of node %d is invalid: %s", n.Operation, n.ID, v1.Message(errs))
			}
			byName[n.Operation] = op
		}
		byNode[n.ID] = op
	}
	return byNode, nil
}

// operation makes of a definition what the pipeline runs. The errors name fields and values.
func (x *execution) operation(o *v1.Operation) (operation, field.ErrorList) {
	call, errs := o.Spec.Call()
	op := operation{Name: o.Name, Timeout: call.Timeout}
	if len(errs) > 0 {
		return op, errs
	}
	if call.Kind != v1.ProcessorBuiltIn && onlyPlanned(&x.d.Spec) {
		return op, field.ErrorList{field.Forbidden(field.NewPath("spec", "processor"), "with mode Plan or Approve, or a planHash, only built-in processors "+
			"run: what another one changes is in no plan")}
	}
	if call.Kind != v1.ProcessorBuiltIn && x.External == nil {
		return op, field.ErrorList{field.Forbidden(field.NewPath("spec", "processor"), "only built-in processors run here")}
	}
	if s := o.Spec.Storage; s != nil && s.HostPath != nil {
		var err error
		if op.Storage, err = x.files.storageDir(s.HostPath.Path); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "storage", "hostPath", "path"), s.HostPath.Path, err.Error()))
		}
	}
	at := field.NewPath("spec", "processor")
	switch call.Kind {
	case v1.ProcessorBuiltIn:
		step, ok := x.Registry.Lookup(call.BuiltIn)
		if !ok {
			errs = append(errs, field.NotSupported(at.Child("path"), v1.BuiltInPathPrefix+call.BuiltIn, x.paths()))
		}
		op.Step = step
	case v1.ProcessorHTTP:
		op.HasSideEffects, op.Step.Processor = true, x.External.Server(o.Name, call.URL)
	case v1.ProcessorScript:
		op.HasSideEffects, op.Step.Processor = true, x.script(o.Name, call.Script)
	default:
		errs = append(errs, field.Forbidden(at.Child("function"), "functions are not run"))
	}
	return op, errs
}

// paths lists the paths of all built-in processors.
func (x *execution) paths() []string {
	var paths []string
	for _, name := range x.Registry.Names() {
		paths = append(paths, v1.BuiltInPathPrefix+name)
	}
	return paths
}

func (x *execution) script(name string, s *v1.ScriptRunner) processor.Processor {
	key := name
	if s.OperationResultKey != nil && *s.OperationResultKey != "" {
		key = *s.OperationResultKey
	}
	return x.External.Script(name, s.Script, s.ArgKeys, key)
}
