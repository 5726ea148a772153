// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/extract"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubeclient"
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

// TestLargePodIsWatched: the sentinel and the looks see the volumes of a pod that is too large for the cache, as long as there is room. A
// namespace full of such pods leaves room for that of another one, and a pod that goes gives its room back.
func TestLargePodIsWatched(t *testing.T) {
	t.Parallel()
	large := func(namespace, name string) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName, pod.ResourceVersion = namespace, name, types.UID(namespace+name), "n1", "1"
		for i := range 500 {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", i)})
		}
		return pod
	}
	greedy := []client.Object{}
	for i := range 50 {
		greedy = append(greedy, large("greedy", fmt.Sprint("p", i)))
	}
	victim := large("victim", "p")
	pods := &nodePods{live: fake.NewClientBuilder().WithObjects(append(greedy, victim)...).Build(), large: newLargePods()}
	add := func(pod *corev1.Pod) {
		pods.replacePod(nil, extract.Pod(pod))
		of, _ := pods.large.queue.Get()
		pods.readLargePod(t.Context(), of)
		pods.large.queue.Done(of)
	}
	seen := 0
	for _, pod := range greedy {
		add(pod.(*corev1.Pod))
		if !extract.Large(pods.PodByUID(string(pod.GetUID()))) {
			seen++
		}
	}
	if seen == 0 || seen == len(greedy) {
		t.Errorf("%d of %d pods of one namespace are whole: some are, and not all", seen, len(greedy))
	}
	add(victim)
	if got := pods.PodByUID("victimp"); extract.Large(got) || len(got.Spec.Volumes) != 500 {
		t.Errorf("a pod of another namespace has %d volumes", len(got.Spec.Volumes))
	}
	for _, pod := range append(greedy, victim) {
		pods.replacePod(pod.(*corev1.Pod), nil)
	}
	if taken := pods.large.room.Taken(); taken != 0 || len(pods.large.blocks) > 0 {
		t.Errorf("%d blocks are taken by no pod", taken)
	}
}

// TestCacheSeesOneNode: no watch grows with the cluster. Kinds with many objects have a selector.
func TestCacheSeesOneNode(t *testing.T) {
	t.Parallel()
	scheme, err := kubeclient.NewScheme()
	must(t, err)
	long := strings.Repeat("n", 60) + "." + strings.Repeat("n", 60)
	for _, node := range []string{"n1", long} {
		o := cacheOptions(node)
		selectors := map[string]string{}
		for object, by := range o.ByObject {
			gvk, err := apiutil.GVKForObject(object, scheme)
			must(t, err)
			if by.Label != nil {
				selectors[gvk.Kind] = by.Label.String()
			}
			if by.Field != nil {
				selectors[gvk.Kind] = by.Field.String()
			}
		}
		if want := v1.LabelNode + "=" + v1.NodeLabelValue(node); selectors["Diagnosis"] != want {
			t.Errorf("Diagnoses by %q, want %q", selectors["Diagnosis"], want)
		}
		if want := "spec.nodeName=" + node; selectors["Pod"] != want {
			t.Errorf("Pods by %q, want %q", selectors["Pod"], want)
		}
	}
}
