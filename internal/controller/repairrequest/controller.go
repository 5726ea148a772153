// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package repairrequest asks people to approve the repairs that RecoveryPolicies want approved. Agents write into a MountFault which
// mode holds for it. If that is Approve, this package makes a Diagnosis with mode Approve of the pod. Its agent plans the repair and
// waits for a RecoveryApproval. If it is Plan, the Diagnosis has mode Plan, and ends with its plan. This package allows nothing.
package repairrequest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "kubediag.org/kubediag/api/v1"
)

// These are the rights for it. A Diagnosis is made in the namespace of kubediag, as those of Triggers are.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=mountfaults,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=get;list;watch
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=diagnoses,verbs=create,namespace=kubediag

const (
	// Interval is the least time between two Diagnoses of the same pod.
	Interval = 10 * time.Minute
	// Delay is how long a fault lasts before a Diagnosis is made for it. The kubelet updates the volumes of a pod one after the other,
	// and a plan that lacks a part of the faults is of no use: it changes with the next fault.
	Delay = 10 * time.Second
	// PerSecond and Burst bound the Diagnoses of the cluster.
	PerSecond, Burst = 10, 100
	// unfinishedIndex finds the Diagnoses of a pod on a node that have not ended.
	unfinishedIndex = "repairrequest.unfinished"
)

// Reconciler makes the Diagnoses.
type Reconciler struct {
	// Client reads MountFaults and Diagnoses from a cache, and creates Diagnoses.
	Client client.Client
	Clock  clock.PassiveClock
	// Namespace is where Diagnoses are made.
	Namespace string
	// Limiter bounds the Diagnoses that are made.
	Limiter *rate.Limiter
}

// SetupWithManager adds the reconciler, and its index of Diagnoses, to a manager.
func (r *Reconciler) SetupWithManager(m manager.Manager) error {
	err := m.GetFieldIndexer().IndexField(context.Background(), &v1.Diagnosis{}, unfinishedIndex, unfinished)
	if err != nil {
		return fmt.Errorf("indexing unfinished diagnoses: %w", err)
	}
	asked := predicate.NewPredicateFuncs(func(o client.Object) bool {
		f, ok := o.(*v1.MountFault)
		return ok && asks(f)
	})
	return builder.ControllerManagedBy(m).Named("repairrequest").For(&v1.MountFault{}, builder.WithPredicates(asked)).Complete(r)
}

// modes are those of the Diagnoses for faults that policies do not leave to the agents.
var modes = map[v1.RecoveryMode]v1.DiagnosisMode{v1.RecoveryPlan: v1.ModePlan, v1.RecoveryApprove: v1.ModeApprove}

// asks reports whether policies want the plan of a repair that loses nothing, to see it or to approve it.
func asks(f *v1.MountFault) bool {
	return f.DeletionTimestamp.IsZero() && f.Status.Pod != nil && f.Status.Heal == v1.HealSafe &&
		f.Status.Recovery != nil && modes[f.Status.Recovery.Mode] != ""
}

// unfinished are the values of unfinishedIndex.
func unfinished(o client.Object) []string {
	d, ok := o.(*v1.Diagnosis)
	if !ok || d.Status.Phase == v1.DiagnosisSucceeded || d.Status.Phase == v1.DiagnosisFailed || d.Spec.PodReference == nil ||
		d.Spec.Mode == v1.ModeRecord {
		return nil
	}
	return []string{key(d.Spec.PodReference.Namespace, d.Spec.PodReference.Name)}
}

func key(namespace, name string) string { return namespace + "/" + name }

// Reconcile makes the Diagnosis of the pod of a fault, unless one is under way. While the fault is there, it looks again.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	f := &v1.MountFault{}
	if err := r.Client.Get(ctx, req.NamespacedName, f); err != nil || !asks(f) {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	now := r.Clock.Now()
	// A fault that is newer than the clock is one of a node whose clock is ahead.
	if wait := f.Status.Since.Add(Delay).Sub(now); wait > 0 && wait <= Delay {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	again := reconcile.Result{RequeueAfter: Interval}
	busy, err := r.busy(ctx, f)
	if err != nil || busy {
		return again, err
	}
	d := diagnosisOf(f, now)
	d.Namespace = r.Namespace
	err = r.Client.Get(ctx, client.ObjectKeyFromObject(d), &v1.Diagnosis{})
	if err == nil {
		return again, nil // it has ended, and the next one has to wait
	}
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("reading diagnosis %s/%s: %w", d.Namespace, d.Name, err)
	}
	turn := r.Limiter.ReserveN(now, 1)
	if wait := turn.DelayFrom(now); wait > 0 {
		turn.CancelAt(now)
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	err = r.Client.Create(ctx, d)
	switch {
	case apierrors.IsAlreadyExists(err): // the cache lags behind
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err): // such as a namespace that is going
		log.FromContext(ctx).Error(err, "Could not ask for the approval of a repair", "diagnosis", d.Name)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("creating diagnosis %s/%s: %w", d.Namespace, d.Name, err)
	}
	return again, nil
}

// busy reports whether a Diagnosis about the pod has not ended.
func (r *Reconciler) busy(ctx context.Context, f *v1.MountFault) (bool, error) {
	if f.Status.Diagnosis != "" {
		return true, nil // its end changes the MountFault
	}
	var list v1.DiagnosisList
	err := r.Client.List(ctx, &list, client.MatchingFields{unfinishedIndex: key(f.Status.Pod.Namespace, f.Status.Pod.Name)}, client.Limit(1))
	if err != nil {
		return false, fmt.Errorf("listing unfinished diagnoses: %w", err)
	}
	return len(list.Items) > 0, nil
}

// maxBase leaves room in a name for what makes it unique.
const maxBase = 200

// diagnosisOf is the Diagnosis of the pod of a fault. All faults of a pod have the same in an interval, so that a manager that
// is restarted makes no second one. With mode Plan, a fault has one as long as it lasts.
func diagnosisOf(f *v1.MountFault, now time.Time) *v1.Diagnosis {
	pod := f.Status.Pod
	mode, once := modes[f.Status.Recovery.Mode], strconv.FormatInt(now.UnixNano()/int64(Interval), 10)
	if mode == v1.ModePlan {
		once = f.Namespace + "/" + f.Name
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{f.Status.Node, string(pod.UID), once}, "\x00")))
	d := &v1.Diagnosis{}
	d.Name = strings.TrimRight(pod.Name[:min(len(pod.Name), maxBase)], "-.") + "-" + hex.EncodeToString(sum[:5])
	d.Labels = map[string]string{v1.LabelOrigin: v1.OriginPolicy}
	d.Annotations = map[string]string{v1.AnnotationPolicies: strings.Join(f.Status.Recovery.Policies, ",")}
	d.Spec = v1.DiagnosisSpec{
		OperationSet: v1.DefaultOperationSet, Mode: mode, NodeName: f.Status.Node,
		PodReference: &v1.PodReference{Namespace: pod.Namespace, Name: pod.Name},
	}
	return d
}
