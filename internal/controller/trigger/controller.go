// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package trigger keeps Triggers at work: it hands each to its source, fires those of the clock, writes their results into their
// status, and deletes their old Diagnoses. It makes no Diagnosis itself: package internal/trigger does.
package trigger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/trigger"
	"kubediag.org/kubediag/internal/trigger/cron"
)

// These are the rights for it. Nodes are listed for a nodeSelector, Events for a kubernetesEventTemplate. A
// mountFaultTemplate has the MountFaults watched, and the labels of a fault's namespace, pod and node read.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=triggers,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=triggers/status,verbs=patch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=create,namespace=kubediag
// +kubebuilder:rbac:groups="",resources=events,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list
// +kubebuilder:rbac:groups="",resources=pods,verbs=get
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=get;list;watch

// maxConcurrentReconciles is how many Triggers are reconciled at once, so that no Trigger waits for the writes of another.
const maxConcurrentReconciles = 4

// Reconciler keeps Triggers at work.
type Reconciler struct {
	// Client reads Triggers and Diagnoses from a cache, writes the status of the first and deletes the second.
	Client client.Client
	Clock  clock.PassiveClock
	// Namespace is where Diagnoses are made.
	Namespace  string
	Dispatcher Dispatcher
	// Sources watch. A Trigger of the clock has none.
	Sources []trigger.Source
	// AlertsReceived reports whether the manager listens for alerts.
	AlertsReceived bool
	// Every is the time between two reconciliations of a Trigger.
	Every time.Duration

	lastCleanup sync.Map // by the name of the Trigger, the time.Time of the last cleanup of its history
}

// Dispatcher makes Diagnoses of causes, and reports its progress.
type Dispatcher interface {
	trigger.Offerer
	Ensure(t *v1.Trigger)
	Forget(name string)
	Progress(name string) trigger.Progress
	Settle(name string, t trigger.Tally)
}

// SetupWithManager adds the reconciler, and the index by which it finds the Diagnoses of a Trigger, to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	if err := m.GetFieldIndexer().IndexField(context.Background(), &v1.Diagnosis{}, ownerIndex, ownerNames); err != nil {
		return err
	}
	return builder.ControllerManagedBy(m).
		For(&v1.Trigger{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: maxConcurrentReconciles}).
		Complete(r)
}

// Reconcile installs one Trigger, runs its schedule and writes its status. An invalid Trigger is not reconciled again before it changes.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var old v1.Trigger
	if err := r.Client.Get(ctx, req.NamespacedName, &old); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.removeFromSources(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	t, now := old.DeepCopy(), r.Clock.Now()
	ready := r.installAndJudge(t)
	meta.SetStatusCondition(&t.Status.Conditions, ready)
	var run *trigger.Cause
	again := r.Every
	if ready.Status == metav1.ConditionTrue {
		r.Dispatcher.Ensure(t)
		var err error
		if run, again, err = r.nextRun(t, now); err != nil {
			return reconcile.Result{}, err
		}
	} else if ready.Reason != v1.ReasonSuspended {
		again = 0
	}
	progress := r.Dispatcher.Progress(t.Name)
	addProgress(t, progress)
	result, err := kubeclient.PatchStatus(ctx, r.Client, &old, t)
	if err != nil || result.RequeueAfter > 0 {
		return result, err
	}
	r.Dispatcher.Settle(t.Name, progress.Tally)
	if run != nil {
		if err := r.Dispatcher.Offer(t.Name, *run); err != nil {
			return reconcile.Result{}, fmt.Errorf("firing trigger %q: %w", t.Name, err)
		}
	}
	if err := r.deleteSurplus(ctx, t, now); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// installAndJudge installs a Trigger in its source, and returns whether it can fire. A Trigger that cannot is removed from all sources.
func (r *Reconciler) installAndJudge(trigger *v1.Trigger) metav1.Condition {
	ready := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, ObservedGeneration: trigger.Generation}
	source := trigger.Spec.SourceTemplate
	errs, never := trigger.Spec.Validate(), false
	if c := source.CronTemplate; c != nil {
		schedule, err := cron.Parse(c)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath("spec", "sourceTemplate", "cronTemplate", "schedule"), c.Schedule, err.Error()))
		}
		never = err == nil && schedule.Next(r.Clock.Now()).IsZero()
	}
	switch {
	case len(errs) > 0:
		ready.Reason, ready.Message = v1.ReasonInvalidSpec, v1.Message(errs)
	case source.CommonEventTemplate != nil:
		ready.Reason = v1.ReasonSourceNotSupported
		ready.Message = "spec.sourceTemplate: this release does not watch this source, so that the Trigger never fires"
	case trigger.Spec.Suspend:
		ready.Reason, ready.Message = v1.ReasonSuspended, "spec.suspend is set: the Trigger does not fire"
	case source.PrometheusAlertTemplate != nil && !r.AlertsReceived:
		ready.Reason = v1.ReasonReceiverOff
		ready.Message = "the manager receives no alerts: start it with --alert-bind-address, as config/overlays/alert-receiver does"
	case never:
		ready.Reason = v1.ReasonNeverFires
		ready.Message = fmt.Sprintf("spec.sourceTemplate.cronTemplate.schedule: %q has no time in the next five years", source.CronTemplate.Schedule)
	default:
		r.Dispatcher.Ensure(trigger) // before any source offers
		ready.Status, ready.Reason, ready.Message = metav1.ConditionTrue, v1.ReasonReady, "Trigger fires when its source does"
		for _, s := range r.Sources {
			if err := s.Install(trigger); err != nil {
				ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1.ReasonInvalidSpec, err.Error()
				break
			}
		}
	}
	if ready.Status == metav1.ConditionTrue {
		return ready
	}
	r.removeFromSources(trigger.Name)
	return ready
}

func (r *Reconciler) removeFromSources(name string) {
	for _, s := range r.Sources {
		s.Remove(name)
	}
	r.Dispatcher.Forget(name)
	r.lastCleanup.Delete(name)
}

// addProgress adds the events since the last write to the status. The list of drops has one entry for each reason.
func addProgress(t *v1.Trigger, p trigger.Progress) {
	s := &t.Status
	s.Matched += p.Tally.Matched
	s.Fired += p.Tally.Fired
	s.Repeated += p.Tally.Repeated
	if !p.Tally.LastFired.IsZero() {
		setTime(&s.LastFiredTime, p.Tally.LastFired)
		s.LastDiagnosis = p.Tally.LastDiagnosis
	}
	for _, drop := range p.Tally.Dropped {
		i := slices.IndexFunc(s.Dropped, func(d v1.TriggerDrop) bool { return d.Reason == drop.Reason })
		if i < 0 {
			s.Dropped = append(s.Dropped, drop)
			continue
		}
		drop.Count += s.Dropped[i].Count
		s.Dropped[i] = drop
	}
	slices.SortFunc(s.Dropped, func(a, b v1.TriggerDrop) int { return cmp.Compare(a.Reason, b.Reason) })
	// A run that this manager has not begun yet keeps its count: it is begun because of it.
	begun := p.Busy || s.LastScheduleTime == nil || p.Completed.Equal(s.LastScheduleTime.Time)
	if t.Spec.SourceTemplate.CronTemplate == nil || begun || s.PendingNodes == 0 {
		s.PendingNodes = p.Pending
	}
}
