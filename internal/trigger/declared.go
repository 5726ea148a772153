// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/builtin"
)

// notYet is a Rejection for an object that may be there soon: a Trigger and its OperationSet are often applied together.
func notYet(reason, format string, args ...any) *Rejection {
	r := Reject(reason, format, args...)
	r.passes = true
	return r
}

// declared refuses a cause whose OperationSet cannot be used, or that has parameters which no Operation of the set
// declares.
func (d *Dispatcher) declared(ctx context.Context, t *v1.Trigger, cause *Cause) error {
	set := &v1.OperationSet{}
	err := d.Client.Get(ctx, client.ObjectKey{Name: t.Spec.OperationSet}, set)
	switch {
	case apierrors.IsNotFound(err):
		return notYet(v1.ReasonOperationSetNotFound, "there is no OperationSet %q", t.Spec.OperationSet)
	case err != nil:
		return fmt.Errorf("reading operation set %q: %w", t.Spec.OperationSet, err)
	case !meta.IsStatusConditionTrue(set.Status.Conditions, v1.ConditionReady):
		return notYet(v1.ReasonOperationSetNotReady, "OperationSet %q is not ready", set.Name)
	}
	if len(cause.Parameters) == 0 {
		return nil
	}
	var known []string
	for _, n := range set.Spec.AdjacencyList {
		if n.Operation == "" {
			continue
		}
		op := &v1.Operation{}
		err := d.Client.Get(ctx, client.ObjectKey{Name: n.Operation}, op)
		if err != nil {
			return fmt.Errorf("reading operation %q: %w", n.Operation, err)
		}
		call, errs := op.Spec.Call()
		if len(errs) > 0 {
			continue
		}
		known = slices.Concat(known, op.Spec.Parameters, builtin.Parameters(call.BuiltIn))
		if call.Script != nil {
			known = append(known, call.Script.ArgKeys...)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cause.Parameters)) {
		if !slices.Contains(known, key) {
			return Reject(v1.ReasonParameterNotDeclared, "no Operation of OperationSet %q declares the parameter %q", set.Name, key)
		}
	}
	return nil
}
