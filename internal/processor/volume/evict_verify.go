// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/repair"
)

// evictPollInterval is how often the pod is looked at while it is waited for.
const evictPollInterval = time.Second

// Verify proves that the pod is gone, or on its way. While it is on its way its faults are not called healed.
func (h *EvictRecoverer) Verify(ctx context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	options, err := evictOptionsOf(request.Values)
	if err != nil {
		return processor.Result{}, err
	}
	if len(plan.Actions) != 1 || plan.Actions[0].Pod == nil {
		return processor.Result{}, processor.Stalled(errors.New("read plan: it evicts no pod"))
	}
	pod := *plan.Actions[0].Pod
	left, err := h.awaitGone(ctx, request, pod.UID, options.WaitWithin(ctx))
	if err != nil {
		return processor.Result{}, err
	}
	did := evictedIdentity(pod) + " was evicted"
	if done := plan.Outcome(0); done.Already {
		did = fmt.Sprintf("%s was not evicted: %s", evictedIdentity(pod), done.Message)
	}
	if left != nil {
		did += ", and is being deleted: " + h.deletionBlockers(ctx, left, time.Now())
		return processor.Result{Values: map[string]string{KeyEvictResult: did}, Findings: plan.Findings}, nil
	}
	return processor.Result{Values: map[string]string{KeyEvictResult: did + ", and is gone"}, Findings: processor.MarkHealed(plan.Findings, nil)}, nil
}

// awaitGone waits until the pod has gone, and returns it if it is only on its way.
func (h *EvictRecoverer) awaitGone(ctx context.Context, request processor.Request, uid string, limit time.Duration) (pod *corev1.Pod, err error) {
	gone, err := processor.Poll(ctx, evictPollInterval, limit, func() (bool, error) {
		pod, err = h.Pods.Pod(ctx, request.Pod.Namespace, request.Pod.Name)
		if errors.Is(err, kubelet.ErrPodNotFound) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("get pod %s/%s: %w", request.Pod.Namespace, request.Pod.Name, err)
		}
		return string(pod.UID) != uid, nil
	})
	switch {
	case err != nil || gone:
		return nil, err
	case pod.DeletionTimestamp == nil:
		return nil, processor.Stalled(fmt.Errorf("verify eviction of pod %s/%s: after %.0f s it is neither gone nor being deleted",
			pod.Namespace, pod.Name, limit.Seconds()))
	}
	return pod, nil
}

// deletionBlockers says what a pod is waited for that is being deleted. The deletion timestamp is when its grace period
// ends.
func (h *EvictRecoverer) deletionBlockers(ctx context.Context, pod *corev1.Pod, now time.Time) string {
	if left := pod.DeletionTimestamp.Sub(now).Round(time.Second); left > 0 {
		return fmt.Sprintf("its containers have %s left to end by themselves", left)
	}
	findings, _, err := h.Judge.Unrepairable(ctx, string(pod.UID))
	if err != nil || len(findings) == 0 {
		return "its grace period is over, and it is still there; " + evictionBlocked
	}
	return fmt.Sprintf("its grace period is over, and it stays on this node while it has %s: %s", describeFindings(findings), evictionBlocked)
}
