// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package restart

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// WakeKubelet is the kind of the action that has the kubelet look at the pod at once. After a start that failed it does so
// by itself 10 to 15 s later, whether or not what it failed for is still there.
const WakeKubelet = "WakeKubelet"

// Waker has the kubelet look at a pod at once.
type Waker interface {
	// Wake returns when the kubelet will look at the pod with that UID, and know of every record that the runtime had
	// removed before the call. Nothing of the pod is other than it was.
	Wake(ctx context.Context, namespace, name, uid string) error
}

// wakings plans to wake the kubelet where containers wait and that is allowed.
func (s Starter) wakings(pod *corev1.Pod, w Waiting, code fault.Code) []processor.Action {
	if s.Waker == nil || len(w.Containers) == 0 {
		return nil
	}
	return []processor.Action{{
		Kind: WakeKubelet, Target: pod.Namespace + "/" + pod.Name, Fault: code,
		Safety: "an annotation is set on the pod and taken away again; the kubelet looks at a pod whose metadata has changed",
		Loss:   "nothing",
	}}
}

// wake applies such an action. Where that is not possible, the kubelet is waited for.
func (s Starter) wake(ctx context.Context, pod *corev1.Pod) string {
	if s.Waker == nil {
		return "left alone: it is not allowed"
	}
	if err := s.Waker.Wake(ctx, pod.Namespace, pod.Name, string(pod.UID)); err != nil {
		return "left to wake by itself: " + err.Error()
	}
	return "woken"
}
