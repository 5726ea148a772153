// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/processor"
)

// TestLargePodIsReadLive: a Diagnosis of a pod that is too large for the cache has the whole pod, and so has the question whether a policy
// holds its repair.
func TestLargePodIsReadLive(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName = "ns", "p", "u", "n1"
	pod.Labels = map[string]string{"app": "web"}
	for i := range 5000 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i)})
	}
	kept := extract.Pod(pod)
	if !extract.Large(kept) || len(kept.Spec.Volumes) > 0 {
		t.Fatalf("%d volumes are kept", len(kept.Spec.Volumes))
	}
	pods := &nodePods{node: "n1", cache: fake.NewClientBuilder().WithObjects(kept).Build(), live: fake.NewClientBuilder().WithObjects(pod).Build()}
	pods.replacePod(nil, kept)
	got, err := pods.Pod(t.Context(), "ns", "p")
	if err != nil || len(got.Spec.Volumes) != 5000 {
		t.Errorf("a Diagnosis has %d volumes, %v", len(got.Spec.Volumes), err)
	}
	holder := &repairHolder{pods: pods}
	for name, request := range map[string]processor.Request{"of the pod": {Pod: processor.Pod{Namespace: "ns", Name: "p"}}, "of the node": {}} {
		got, err := holder.podOfAction(t.Context(), request, fault.Action{Pod: &fault.Pod{Namespace: "ns", Name: "p", UID: string(types.UID("u"))}})
		if err != nil || got == nil || got.Labels["app"] != "web" {
			t.Errorf("%s: policies see %+v, %v", name, got, err)
		}
	}
}
