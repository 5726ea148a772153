// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/kubeclient"
)

// These are the rights for it. The agent reads the one RecoveryApproval that the manager has named, and watches none.
//
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoveryapprovals,verbs=get
// +kubebuilder:rbac:groups=diagnosis.kubediag.org,resources=recoveryapprovals/status,verbs=patch

// Approval reads the approval that the manager has named.
func (s *statusStore) Approval(ctx context.Context, d *v1.Diagnosis) (*v1.RecoveryApproval, error) {
	name := d.Annotations[v1.AnnotationApproval]
	if name == "" {
		return nil, nil
	}
	found := &v1.RecoveryApproval{}
	err := s.live.Get(ctx, client.ObjectKey{Namespace: d.Namespace, Name: name}, found)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get recovery approval %q: %w", name, err)
	}
	return found, nil
}

// Settle stores the status of an approval, unless it has changed since it was read.
func (s *statusStore) Settle(ctx context.Context, settled *v1.RecoveryApproval) error {
	was := settled.DeepCopy()
	was.Status = v1.RecoveryApprovalStatus{}
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	if err := s.client.Status().Patch(ctx, settled.DeepCopy(), patch, fieldOwner); err != nil {
		return fmt.Errorf("store status of recovery approval: %w", err)
	}
	return nil
}

// eventWaiting is the reason of the Event that a Diagnosis waits for its approval.
const eventWaiting = "WaitingForApproval"

// Waiting is called when a Diagnosis waits for its approval.
func (o *observer) Waiting(d *v1.Diagnosis) {
	o.reportFaults(d)
	if a := d.Status.Approval; a != nil {
		text := fmt.Sprintf("Plan %.12s waits for approval until %s", a.PlanHash, a.ExpirationTime.UTC().Format(time.RFC3339))
		o.events.Event(d, corev1.EventTypeNormal, eventWaiting, kubeclient.EventAdvice(text, kubeclient.ApproveCommand(d)))
	}
}
