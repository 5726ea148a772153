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
// by itself 10 to 15 s later (1.18.19), or at the end of the back-off and after 90 s at the latest (1.36.3), whether or not
// what it failed for is still there.
const WakeKubelet = "WakeKubelet"

// Waker has the kubelet look at a pod at once.
type Waker interface {
	// Wakes tells whether Wake can do anything in this run.
	Wakes(ctx context.Context) bool
	// Wake has the kubelet look at the pod, and, as a rule, know of every record that the runtime had removed before the
	// call. It changes an annotation of the pod on the way, and nothing of the pod for good; where even that would harm the
	// pod, or nobody is there to do it, it is an error.
	Wake(ctx context.Context, namespace, name string) error
}

// wakings plans to wake the kubelet where containers wait and there is somebody to do it.
func (s Starter) wakings(ctx context.Context, pod *corev1.Pod, w Waiting, code fault.Code) []processor.Action {
	if s.Waker == nil || len(w.Containers) == 0 || !s.Waker.Wakes(ctx) {
		return nil
	}
	return []processor.Action{{
		Kind: WakeKubelet, Target: pod.Namespace + "/" + pod.Name, Fault: code,
		Safety: "the manager sets an annotation on the pod and takes it away again; the kubelet looks at a pod whose metadata has changed",
		Loss:   "nothing",
	}}
}

// wake applies such an action. Where that is not possible, the kubelet is waited for.
func (s Starter) wake(ctx context.Context, pod *corev1.Pod) string {
	if s.Waker == nil {
		return "left alone: there is nobody to do it"
	}
	if err := s.Waker.Wake(ctx, pod.Namespace, pod.Name); err != nil {
		return "the kubelet may look at the pod only when its time has come: " + err.Error()
	}
	return "woken"
}
