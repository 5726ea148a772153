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

// Verify has the pod waited for, and proves that it is gone, or on its way. While it is on its way its faults are not called healed.
func (h *EvictRecoverer) Verify(_ context.Context, request processor.Request, plan repair.Part) (processor.Result, error) {
	options, err := evictOptionsOf(request.Values)
	if err != nil {
		return processor.Result{}, err
	}
	if len(plan.Actions) != 1 || plan.Actions[0].Pod == nil {
		return processor.Result{}, processor.Stalled(errors.New("read plan: it evicts no pod"))
	}
	planned := *plan.Actions[0].Pod
	did := evictedIdentity(planned) + " was evicted"
	if done := plan.Outcome(0); done.Already {
		did = fmt.Sprintf("%s was not evicted: %s", evictedIdentity(planned), done.Message)
	}
	var pod *corev1.Pod
	return processor.Result{Findings: plan.Findings, Wait: &processor.Wait{
		Limit: options.Wait, Interval: evictPollInterval,
		Look: func(ctx context.Context) (gone bool, err error) {
			pod, err = h.Pods.Pod(ctx, request.Pod.Namespace, request.Pod.Name)
			if errors.Is(err, kubelet.ErrPodNotFound) {
				return true, nil
			}
			if err != nil {
				return false, fmt.Errorf("get pod %s/%s: %w", request.Pod.Namespace, request.Pod.Name, err)
			}
			return string(pod.UID) != planned.UID, nil
		},
		End: func(ctx context.Context, gone bool, waited time.Duration) (processor.Result, error) {
			switch {
			case gone:
				return processor.Result{Values: map[string]string{KeyEvictResult: did + ", and is gone"}, Findings: processor.MarkHealed(plan.Findings, nil)}, nil
			case pod.DeletionTimestamp == nil:
				return processor.Result{}, processor.Stalled(fmt.Errorf("verify eviction of pod %s/%s: after %.0f s it is neither gone nor being deleted",
					pod.Namespace, pod.Name, waited.Seconds()))
			}
			did += ", and is being deleted: " + h.deletionBlockers(ctx, pod, time.Now())
			return processor.Result{Values: map[string]string{KeyEvictResult: did}, Findings: plan.Findings}, nil
		},
	}}, nil
}

// deletionBlockers says why a pod that is being deleted is still there. The deletion timestamp is when its grace period
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
