// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package operation says in the status of an Operation what it would run and whether it can. It repeats the checks of
// the CustomResourceDefinition, because API servers before 1.25 drop CEL rules in silence, and adds the one that no
// schema can make: whether a built-in processor of that name exists. It runs nothing.
package operation

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/builtin"
	"kubediag.org/kubediag/internal/kubeclient"
)

// The permissions of the manager for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=operations/status,verbs=patch

// Reconciler writes the status of Operations.
type Reconciler struct {
	Client client.Client
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return builder.ControllerManagedBy(m).
		For(&v1.Operation{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// Reconcile checks one Operation. An invalid one is not tried again before it changes.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var old v1.Operation
	if err := r.Client.Get(ctx, req.NamespacedName, &old); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	op := old.DeepCopy()
	setReady(op)
	return kubeclient.PatchStatus(ctx, r.Client, &old, op)
}

// setReady fills in the status.
func setReady(operation *v1.Operation) {
	call, errs := operation.Spec.Call()
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: operation.Generation,
	}
	switch {
	case len(errs) > 0:
		ready.Reason, ready.Message = v1.ReasonInvalidSpec, v1.Message(errs)
	case call.Kind == v1.ProcessorFunction:
		ready.Reason, ready.Message = v1.ReasonFunctionNotSupported, "spec.processor.function: no code is built on nodes"
	case call.Kind == v1.ProcessorBuiltIn && !builtin.Known(call.BuiltIn):
		unknown := field.Invalid(field.NewPath("spec", "processor", "path"), v1.BuiltInPathPrefix+call.BuiltIn,
			fmt.Sprintf("no built-in processor has the name %q, and no address is set; built in are %s",
				call.BuiltIn, strings.Join(builtin.Names(), ", ")))
		ready.Reason, ready.Message = v1.ReasonBuiltInUnknown, v1.Message(field.ErrorList{unknown})
	default:
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1.ReasonReady, "Operation can be run"
	}
	operation.Status.ObservedGeneration = operation.Generation
	operation.Status.Kind, operation.Status.Target = call.Kind, ""
	if len(errs) == 0 {
		operation.Status.Target = call.Target()
	}
	meta.SetStatusCondition(&operation.Status.Conditions, ready)
}
