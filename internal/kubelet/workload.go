// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubediag.org/kubediag/internal/fault"
)

// WorkloadOf returns the controller that owns a pod, as the pod names it: of a Deployment it is the ReplicaSet. It is empty if
// the pod has no controller.
func WorkloadOf(pod *corev1.Pod) fault.Workload {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return fault.Workload{}
	}
	return fault.Workload{Kind: owner.Kind, Name: owner.Name}
}
