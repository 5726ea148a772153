// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/kubeclient"
	"kubediag.org/kubediag/internal/pipeline"
)

// runner runs Diagnoses: the pipeline's.
type runner interface {
	Run(ctx context.Context, d *v1.Diagnosis) (*v1.Diagnosis, error)
	Forget(keep map[types.UID]bool) error
}

// reconciler runs the Diagnoses of the node. Its work queue is the queue of Diagnoses: one entry for each, as many at a
// time as there are workers, and a Diagnosis that was missed, or could not be stored, comes back. A run lasts as long as its call
// of Reconcile; a deletion of the Diagnosis meanwhile reaches it through runs.
type reconciler struct {
	// node is the name of the node, and namespace kubediag's own.
	node, namespace string
	// cache has the Diagnoses without parameters and results: a run reads its own live.
	cache, live client.Reader
	// refuse ends a Diagnosis that may not run here, before anything runs, and reports whether it has.
	refuse func(ctx context.Context, d *v1.Diagnosis) (refused bool, err error)
	runner runner
	runs   *activeRuns
	// done is called when a run is no longer under way, with or without an error.
	done func(types.UID)
}

// setUp registers the reconciler with the manager.
func (r *reconciler) setUp(m manager.Manager, workers int) error {
	fair := newFairQueue(workers, fairqueue.DiagnosisOwner(r.cache, r.namespace))
	c, err := controller.New("diagnosis", m, controller.Options{
		Reconciler: fairReconciler{fair, r},
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return fairqueue.New(name, limiter, fair)
		},
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute),
		NeedLeaderElection:      new(false),
		SkipNameValidation:      new(true), // there is one controller, but in tests there is more than one agent
	})
	if err != nil {
		return fmt.Errorf("making controller: %w", err)
	}
	return c.Watch(source.Kind(m.GetCache(), &v1.Diagnosis{}, r.eventHandler()))
}

// eventHandler queues the Diagnoses to run, and stops at once those that no longer exist: that must not wait for a worker.
func (r *reconciler) eventHandler() handler.TypedFuncs[*v1.Diagnosis, reconcile.Request] {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(q queue, d *v1.Diagnosis) {
		if r.mustRun(d) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d)})
		}
	}
	return handler.TypedFuncs[*v1.Diagnosis, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*v1.Diagnosis], q queue) { add(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1.Diagnosis], q queue) {
			if e.ObjectOld.UID != e.ObjectNew.UID || e.ObjectNew.DeletionTimestamp != nil {
				r.runs.dropDeleted(e.ObjectOld.UID, pipeline.ErrDeleted)
			}
			add(q, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1.Diagnosis], _ queue) {
			r.runs.dropDeleted(e.Object.UID, pipeline.ErrDeleted)
		},
	}
}

// mustRun reports whether a Diagnosis is for this agent to run. The label that the watch goes by proves nothing; the
// spec does, and the condition by which the manager gives a Diagnosis its place on the node.
func (r *reconciler) mustRun(d *v1.Diagnosis) bool {
	return !d.Ended() && d.HasPlace() && d.Spec.Mode != v1.ModeRecord && d.DeletionTimestamp == nil && d.Spec.NodeName == r.node
}

// approvalInterval is how often it is checked that a plan which waits for its approval is still the plan of the node.
const approvalInterval = 5 * time.Minute

// Reconcile runs a Diagnosis to its end, or until it waits for its approval: then it gives its worker back, and comes
// again when the manager names an approval or the time is up, and in between to plan again.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	known, err := r.getDiagnosis(ctx, r.cache, req.NamespacedName)
	if known == nil {
		return reconcile.Result{}, err
	}
	runCtx, ok := r.runs.startRun(ctx, known.UID)
	if !ok {
		return reconcile.Result{}, nil
	}
	over := false
	defer func() {
		r.done(known.UID)
		r.runs.endRun(known.UID, over)
	}()
	// Before startRun a deletion had nothing to stop; from here on it has. One in between is seen by looking again.
	diagnosis, err := r.getDiagnosis(ctx, r.live, req.NamespacedName)
	if diagnosis == nil || diagnosis.UID != known.UID {
		return reconcile.Result{}, err
	}
	refused, err := r.refuse(runCtx, diagnosis)
	if err == nil && !refused {
		_, err = r.runner.Run(runCtx, diagnosis)
	}
	over = err == nil && runCtx.Err() == nil
	waiting, waits := errors.AsType[*pipeline.WaitingError](err)
	switch {
	case waits:
		return reconcile.Result{RequeueAfter: min(max(time.Until(waiting.Until), time.Second), approvalInterval)}, nil
	case errors.Is(err, pipeline.ErrGone), errors.Is(context.Cause(runCtx), pipeline.ErrDeleted):
		log.FromContext(ctx).Info("Stopped a Diagnosis that is gone", "uid", diagnosis.UID)
		return reconcile.Result{}, nil
	case ctx.Err() != nil:
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("running Diagnosis: %w", err)
	}
	return reconcile.Result{}, nil
}

// getDiagnosis reads a Diagnosis; nil if there is none to run.
func (r *reconciler) getDiagnosis(ctx context.Context, from client.Reader, key types.NamespacedName) (*v1.Diagnosis, error) {
	diagnosis := &v1.Diagnosis{}
	if err := from.Get(ctx, key, diagnosis); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if !r.mustRun(diagnosis) {
		return nil, nil
	}
	return diagnosis, nil
}

// cleanupInterval is how often the files that gone Diagnoses left on the node are removed.
const cleanupInterval = 10 * time.Minute

// cleanup removes journals and full results of Diagnoses that no longer exist.
func (r *reconciler) cleanup() kubeclient.Passes {
	return kubeclient.Passes{
		Clock: clock.RealClock{}, Interval: cleanupInterval, Name: "cleanup", Failure: "Could not remove what gone Diagnoses left",
		Pass: r.forgetDeleted,
	}
}

// forgetDeleted removes the files of all Diagnoses that do not exist. None begins or ends a run meanwhile.
func (r *reconciler) forgetDeleted(ctx context.Context) error {
	r.runs.mu.Lock()
	defer r.runs.mu.Unlock()
	keep := map[types.UID]bool{}
	for uid := range r.runs.running {
		keep[uid] = true
	}
	var list v1.DiagnosisList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Diagnoses: %w", err)
	}
	for _, d := range list.Items {
		keep[d.UID] = true
	}
	return r.runner.Forget(keep)
}
