// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package restart

import (
	"context"
	"slices"

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
	// Wake has the kubelet look at the pod with that UID, and, as a rule, know of every record that the runtime had
	// removed before the call. It changes an annotation of the pod on the way, and nothing of the pod for good.
	Wake(ctx context.Context, namespace, name, uid string) error
}

// wakings plans to wake the kubelet where containers wait and that is allowed. A volume that has all annotations of the pod
// would be written anew for it, and the binds of its subPaths be stale.
func (s Starter) wakings(pod *corev1.Pod, w Waiting, code fault.Code) []processor.Action {
	if s.Waker == nil || len(w.Containers) == 0 || showsAnnotations(pod) {
		return nil
	}
	return []processor.Action{{
		Kind: WakeKubelet, Target: pod.Namespace + "/" + pod.Name, Fault: code,
		Safety: "an annotation is set on the pod and taken away again; the kubelet looks at a pod whose metadata has changed",
		Loss:   "nothing",
	}}
}

// showsAnnotations tells whether a volume of the pod has all of its annotations.
func showsAnnotations(pod *corev1.Pod) bool {
	var files []corev1.DownwardAPIVolumeFile
	for _, v := range pod.Spec.Volumes {
		if v.DownwardAPI != nil {
			files = append(files, v.DownwardAPI.Items...)
		}
		if v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if source.DownwardAPI != nil {
				files = append(files, source.DownwardAPI.Items...)
			}
		}
	}
	return slices.ContainsFunc(files, func(f corev1.DownwardAPIVolumeFile) bool {
		return f.FieldRef != nil && f.FieldRef.FieldPath == "metadata.annotations"
	})
}

// wake applies such an action. Where that is not possible, the kubelet is waited for.
func (s Starter) wake(ctx context.Context, pod *corev1.Pod) string {
	if s.Waker == nil {
		return "left alone: it is not allowed"
	}
	if err := s.Waker.Wake(ctx, pod.Namespace, pod.Name, string(pod.UID)); err != nil {
		return "not woken, it looks at the pod when its time has come: " + err.Error()
	}
	return "woken"
}
