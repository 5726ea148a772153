// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package waking has kubelets look at pods that were repaired, when an agent asks for it by the condition KubeletWoken of the
// Diagnosis that it runs. An agent cannot do that itself: it would take the right to change the status of all pods, which
// nobody who takes over a node should find there.
//
// It changes one annotation, of the pod that the Diagnosis is about and only if that is on the Diagnosis' node, takes it away
// again and answers in the condition. It trusts nothing else that the agent says.
package waking

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/printable"
)

const (
	// workers is how many kubelets are woken at once.
	workers = 4
	// burst and perSecond bound how many are woken on all nodes together: so many at once, and then so many a second. Whoever
	// asks for more is refused, and whoever asks for very many has others refused.
	burst, perSecond = 50, 20
	// maxMessage bounds what is stored of an error, in bytes.
	maxMessage = 1024
)

// What the manager may do for this. The right to annotate a pod is no part of them: config/components/waking gives it.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// Reconciler answers the requests of agents.
type Reconciler struct {
	client  client.Client
	reader  client.Reader
	clock   clock.PassiveClock
	limiter flowcontrol.PassiveRateLimiter
}

// New makes a Reconciler. The client writes; the reader asks the API server itself, so that nothing is answered twice.
func New(c client.Client, reader client.Reader, now clock.PassiveClock) *Reconciler {
	limiter := flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(perSecond, burst, now)
	return &Reconciler{client: c, reader: reader, clock: now, limiter: limiter}
}

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	return builder.ControllerManagedBy(m).
		Named("waking").
		For(&v1.Diagnosis{}, builder.WithPredicates(requests())).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// Reconcile serves a request once, whatever comes of it: the agent does not wait for long, and the kubelet looks at the pod
// anyway when its time has come.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	d := &v1.Diagnosis{}
	if err := r.reader.Get(ctx, req.NamespacedName, d); err != nil || request(d) == "" {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	answer := metav1.Condition{
		Type: v1.ConditionKubeletWoken, Status: metav1.ConditionTrue, Reason: v1.ReasonWoken, ObservedGeneration: d.Generation,
		Message: "The kubelet was made to look at the Pod",
	}
	if err := r.wake(ctx, d); err != nil {
		message := printable.Text(err.Error())
		answer.Status, answer.Reason, answer.Message = metav1.ConditionFalse, v1.ReasonNotWoken, strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
	}
	if err := r.answer(ctx, d, answer); err != nil {
		return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("answering request to wake: %w", err))
	}
	return reconcile.Result{}, nil
}

// answer stores the answer to the request of d, unless the agent has withdrawn it, or asks for another by now.
func (r *Reconciler) answer(ctx context.Context, d *v1.Diagnosis, answer metav1.Condition) error {
	asked := request(d)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if request(d) != asked {
			return nil
		}
		from := client.MergeFromWithOptions(d.DeepCopy(), client.MergeFromWithOptimisticLock{})
		meta.SetStatusCondition(&d.Status.Conditions, answer)
		err := r.client.Status().Patch(ctx, d, from)
		if apierrors.IsConflict(err) {
			now := &v1.Diagnosis{}
			if gone := r.reader.Get(ctx, client.ObjectKeyFromObject(d), now); gone != nil {
				return client.IgnoreNotFound(gone)
			}
			d = now
		}
		return client.IgnoreNotFound(err)
	})
}

// requests lets through what is a request and was none, or another one.
func requests() predicate.Predicate {
	of := func(o client.Object) string {
		if d, ok := o.(*v1.Diagnosis); ok {
			return request(d)
		}
		return ""
	}
	return predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return of(e.Object) != "" },
		UpdateFunc: func(e event.UpdateEvent) bool {
			is := of(e.ObjectNew)
			return is != "" && is != of(e.ObjectOld)
		},
		DeleteFunc: func(event.DeleteEvent) bool { return false },
	}
}

// request is what the agent that runs a Diagnosis asks for; each time it is another text. None: it does not ask.
func request(d *v1.Diagnosis) string {
	runs := d.Status.Phase == v1.DiagnosisRunning || d.Status.Phase == v1.DiagnosisUnknown
	c := meta.FindStatusCondition(d.Status.Conditions, v1.ConditionKubeletWoken)
	if !runs || d.DeletionTimestamp != nil || c == nil || c.Status != metav1.ConditionUnknown {
		return ""
	}
	return c.Reason + ": " + c.Message
}
