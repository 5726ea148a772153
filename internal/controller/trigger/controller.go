// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger checks Triggers and says in their status whether they can fire. No source is watched in this release:
// a valid Trigger is accepted and says that it will not fire, instead of staying silent. It creates nothing.
package trigger

import (
	"context"
	"errors"
	"strings"

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// What the manager may do for this.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=triggers,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=triggers/status,verbs=patch

// Reconciler writes the status of Triggers.
type Reconciler struct {
	Client client.Client
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return builder.ControllerManagedBy(m).
		For(&v1.Trigger{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// Reconcile checks one Trigger. An invalid one is not tried again before it changes.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var old v1.Trigger
	if err := r.Client.Get(ctx, req.NamespacedName, &old); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	t := old.DeepCopy()
	judge(t)
	return kubeclient.PatchStatus(ctx, r.Client, &old, t)
}

// judge fills in the status.
func judge(t *v1.Trigger) {
	ready := metav1.Condition{
		Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: t.Generation,
		Reason: v1.ReasonSourceNotSupported, Message: "spec.sourceTemplate: Trigger is valid, but this release watches no source and creates no Diagnosis for it",
	}
	if errs := validate(&t.Spec); len(errs) > 0 {
		ready.Reason, ready.Message = v1.ReasonInvalidSpec, v1.Message(errs)
	}
	meta.SetStatusCondition(&t.Status.Conditions, ready)
}

// validate checks all that a TriggerSpec can say about itself, the cron schedule included.
func validate(s *v1.TriggerSpec) field.ErrorList {
	errs := s.Validate()
	if c := s.SourceTemplate.CronTemplate; c != nil {
		if err := checkSchedule(c.Schedule); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "sourceTemplate", "cronTemplate", "schedule"), c.Schedule, err.Error()))
		}
	}
	return errs
}

func checkSchedule(schedule string) error {
	// cron/v3 cuts the zone off at the first space and panics where there is none.
	if zoned := strings.HasPrefix(schedule, "TZ=") || strings.HasPrefix(schedule, "CRON_TZ="); zoned && !strings.Contains(schedule, " ") {
		return errors.New("a space and five fields must follow the time zone")
	}
	_, err := cron.ParseStandard(schedule)
	return err
}
