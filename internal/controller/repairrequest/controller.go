// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package repairrequest makes the Diagnoses that RecoveryPolicies ask for. Agents write into a MountFault which mode holds for it. If
// that is Approve, this package makes a Diagnosis with mode Approve of the pod. Its agent plans the repair and waits for a
// RecoveryApproval. If it is Plan, the Diagnosis has mode Plan, and ends with its plan.
//
// Agents also write when the pod is to be evicted because its fault lasts. Then the Diagnosis is one that evicts, with the same modes,
// and in mode Automatic it needs no approval. This package allows no repair: the agent reads the policies again before it acts.
package repairrequest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/fairqueue"
	"kubediag.org/kubediag/internal/share"
)

// These are the rights for it. A Diagnosis is made in the namespace of kubediag, as those of Triggers are.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=create,namespace=kubediag

const (
	// minInterval is the least time between two Diagnoses of the same pod.
	minInterval = 10 * time.Minute
	// Delay is the age of a fault before a Diagnosis is made for it. The kubelet updates the volumes of a pod one after the other,
	// and a plan that lacks a part of the faults is of no use: it changes with the next fault.
	Delay = 10 * time.Second
	// maxInterval is the most time between two Diagnoses that evict the same pod. It doubles with each that did not.
	maxInterval = time.Hour
	// diagnosesPerSecond and diagnosesAtOnce bound the Diagnoses of the cluster. Namespaces share them.
	diagnosesPerSecond, diagnosesAtOnce = 10, 100
	// minWait is the least wait of a fault for its turn, so that thousands of waiting faults are no load.
	minWait = time.Second
	// unfinishedIndex finds the Diagnoses of a pod on a node that have not ended.
	unfinishedIndex = "repairrequest.unfinished"
	// evictionIndex finds the Diagnoses of policies that evict a pod.
	evictionIndex = "repairrequest.eviction"
)

// Reconciler makes the Diagnoses.
type Reconciler struct {
	// Client reads MountFaults and Diagnoses from a cache, and creates Diagnoses.
	Client client.Client
	Clock  clock.PassiveClock
	// Namespace is where Diagnoses are made.
	Namespace string
	// Limiter bounds the Diagnoses that are made, as NewLimiter does.
	Limiter *share.Bucket
}

// NewLimiter makes a limiter for the Diagnoses of the cluster.
func NewLimiter() *share.Bucket {
	all := share.Pace{AtOnce: diagnosesAtOnce, PerHour: diagnosesPerSecond * 3600}
	return share.NewBucket(all, all.Quarter())
}

// SetupWithManager adds the reconciler, and its indexes of Diagnoses, to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	for name, values := range map[string]client.IndexerFunc{unfinishedIndex: unfinished, evictionIndex: evictions} {
		if err := m.GetFieldIndexer().IndexField(context.Background(), &v1.Diagnosis{}, name, values); err != nil {
			return fmt.Errorf("indexing diagnoses by %s: %w", name, err)
		}
	}
	asked := predicate.NewPredicateFuncs(func(o client.Object) bool {
		f, ok := o.(*v1.MountFault)
		return ok && requestOf(f) != nil
	})
	return builder.ControllerManagedBy(m).Named("repairrequest").
		For(&v1.MountFault{}, builder.WithPredicates(asked)).
		WithOptions(controller.Options{NewQueue: fairqueue.InTurns(fairqueue.FaultOwner(r.Client))}).
		Complete(r)
}

// request is the Diagnosis that policies require because of a fault.
type request struct {
	set  string
	mode v1.DiagnosisMode
	// after is the least age of the fault.
	after time.Duration
}

// Modes of the Diagnoses by the modes of policies. Agents repair by themselves in mode Automatic, but evict only for a Diagnosis.
var (
	repairModes = map[v1.RecoveryMode]v1.DiagnosisMode{v1.RecoveryPlan: v1.ModePlan, v1.RecoveryApprove: v1.ModeApprove}
	evictModes  = map[v1.RecoveryMode]v1.DiagnosisMode{
		v1.RecoveryPlan: v1.ModePlan, v1.RecoveryApprove: v1.ModeApprove, v1.RecoveryAutomatic: v1.ModeRecover,
	}
)

// requestOf returns the Diagnosis that policies require because of a fault, or nil: a repair without loss, or else an eviction.
func requestOf(f *v1.MountFault) *request {
	r := f.Status.Recovery
	if !f.DeletionTimestamp.IsZero() || f.Status.Pod == nil || r == nil {
		return nil
	}
	if mode := repairModes[r.Mode]; mode != "" && f.Status.Heal == v1.HealSafe {
		return &request{v1.DefaultOperationSet, mode, Delay}
	}
	if mode := evictModes[r.Mode]; mode != "" && r.EvictAfterSeconds > 0 && r.EvictionRefusal == "" {
		return &request{v1.EvictOperationSet, mode, time.Duration(r.EvictAfterSeconds) * time.Second}
	}
	return nil
}

// unfinished returns the values of unfinishedIndex.
func unfinished(o client.Object) []string {
	d, ok := o.(*v1.Diagnosis)
	if !ok || d.Ended() || d.Spec.PodReference == nil ||
		d.Spec.Mode == v1.ModeRecord {
		return nil
	}
	return []string{key(d.Spec.PodReference.Namespace, d.Spec.PodReference.Name)}
}

// evictions returns the values of evictionIndex.
func evictions(o client.Object) []string {
	d, ok := o.(*v1.Diagnosis)
	if !ok || d.Spec.OperationSet != v1.EvictOperationSet || d.Labels[v1.LabelOrigin] != v1.OriginPolicy || d.Spec.PodReference == nil {
		return nil
	}
	return []string{key(d.Spec.PodReference.Namespace, d.Spec.PodReference.Name)}
}

func key(namespace, name string) string { return namespace + "/" + name }

// Reconcile makes the Diagnosis of the pod of a fault, unless one is under way. While the fault is there, it is reconciled again.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	f := &v1.MountFault{}
	if err := r.Client.Get(ctx, req.NamespacedName, f); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	q, now := requestOf(f), r.Clock.Now()
	if q == nil {
		return reconcile.Result{}, nil
	}
	wait := f.Status.Since.Add(q.after).Sub(now)
	switch ahead := wait > q.after; { // the fault is newer than the clock: the clock of its node is ahead
	case ahead && q.set == v1.EvictOperationSet:
		return reconcile.Result{RequeueAfter: q.after}, nil
	case wait > 0 && !ahead:
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	again := reconcile.Result{RequeueAfter: minInterval}
	if strings.HasPrefix(f.Status.Diagnosis, r.Namespace+"/") {
		return again, nil // its end changes the MountFault
	}
	// An unfinished Diagnosis of another namespace does not count: a tenant's plan that waits for an approval would keep the policies from the
	// pod for as long.
	var others v1.DiagnosisList
	err := r.Client.List(ctx, &others, client.InNamespace(r.Namespace), client.MatchingFields{unfinishedIndex: key(f.Status.Pod.Namespace, f.Status.Pod.Name)},
		client.Limit(1))
	if err != nil {
		return again, fmt.Errorf("listing unfinished diagnoses: %w", err)
	}
	if len(others.Items) > 0 {
		return again, nil
	}
	if wait, err := r.backOff(ctx, f, q, now); err != nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, err
	}
	return r.make(ctx, f, q, now)
}

// make makes the Diagnosis of the pod of a fault, unless that name is taken or others are to come first. All faults of a pod have the same
// Diagnosis in an interval, so that a restarted manager makes no second one. With mode Plan, a fault has one Diagnosis as long as it lasts.
func (r *Reconciler) make(ctx context.Context, f *v1.MountFault, q *request, now time.Time) (reconcile.Result, error) {
	pod, once := f.Status.Pod, strconv.FormatInt(now.UnixNano()/int64(minInterval), 10)
	if q.mode == v1.ModePlan {
		once = f.Namespace + "/" + f.Name
		if q.set == v1.EvictOperationSet {
			once += "/" + q.set
		}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{f.Status.Node, string(pod.UID), once}, "\x00")))
	d := &v1.Diagnosis{}
	d.Namespace, d.Name = r.Namespace, strings.TrimRight(pod.Name[:min(len(pod.Name), maxBase)], "-.")+"-"+hex.EncodeToString(sum[:5])
	d.Labels = map[string]string{v1.LabelOrigin: v1.OriginPolicy}
	d.Annotations = map[string]string{v1.AnnotationPolicies: strings.Join(f.Status.Recovery.Policies, ",")}
	d.Spec = v1.DiagnosisSpec{
		OperationSet: q.set, Mode: q.mode, NodeName: f.Status.Node,
		PodReference: &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name},
	}
	if q.set == v1.EvictOperationSet {
		d.Spec.Parameters = map[string]string{v1.ParamEvictAllowed: "true"}
	}
	again := reconcile.Result{RequeueAfter: minInterval}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(d), &v1.Diagnosis{})
	if err == nil {
		return again, nil // it has ended, and the next one has to wait
	}
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("reading diagnosis %s/%s: %w", d.Namespace, d.Name, err)
	}
	if wait := r.turn(d, now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	err = r.Client.Create(ctx, d)
	switch {
	case apierrors.IsAlreadyExists(err): // the cache lags behind
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err): // such as a namespace that is going
		log.FromContext(ctx).Error(err, "Could not make the Diagnosis that a policy asks for", "diagnosis", d.Name)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("creating diagnosis %s/%s: %w", d.Namespace, d.Name, err)
	}
	return again, nil
}

// turn returns how long a Diagnosis has to wait for its turn, and takes the turn if it need not. One fault is reconciled at a time.
func (r *Reconciler) turn(d *v1.Diagnosis, now time.Time) time.Duration {
	owner := share.Owner{Namespace: d.Spec.PodReference.Namespace, Pod: d.Spec.PodReference.Name}
	answer := r.Limiter.May(owner, now)
	if !answer.OK {
		wait := max(answer.Until.Sub(now), minWait)
		r.Limiter.Wait(owner, now, wait+minWait)
		return wait
	}
	r.Limiter.Take(owner, now)
	return 0
}

// backOff returns how long a Diagnosis that evicts the pod has to wait for earlier ones. Evictions that have ended since the fault began did
// not evict the pod: the fault would be gone.
func (r *Reconciler) backOff(ctx context.Context, f *v1.MountFault, q *request, now time.Time) (time.Duration, error) {
	if q.set != v1.EvictOperationSet {
		return 0, nil
	}
	var list v1.DiagnosisList
	err := r.Client.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingFields{evictionIndex: key(f.Status.Pod.Namespace, f.Status.Pod.Name)})
	if err != nil {
		return 0, fmt.Errorf("listing evictions: %w", err)
	}
	interval, last := minInterval, time.Time{}
	for i := range list.Items {
		made := list.Items[i].CreationTimestamp
		if made.Before(&f.Status.Since) {
			continue
		}
		if !last.IsZero() {
			interval = min(2*interval, maxInterval)
		}
		if made.After(last) {
			last = made.Time
		}
	}
	if last.IsZero() {
		return 0, nil
	}
	return min(last.Add(interval).Sub(now), interval), nil
}

// maxBase leaves room in a name for the part that makes it unique.
const maxBase = 200
