// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/processor"
	"kubediag.org/kubediag/internal/processor/podref"
)

// keyPod is the key of the result.
const keyPod = "collector.kubernetes.pod.detail"

// PodCollector is the processor podDetailCollector.
//
// It collects a pod as the API server has it, without values that look like credentials: a reader of a Diagnosis
// need not have the right to read the pod.
type PodCollector struct {
	Pods kubelet.Pods
}

// Name is podDetailCollector.
func (c *PodCollector) Name() string { return "podDetailCollector" }

// Run returns the pod of the request as JSON.
func (c *PodCollector) Run(ctx context.Context, request processor.Request) (processor.Result, error) {
	pod, err := podref.Get(ctx, c.Pods, request)
	if err != nil {
		return processor.Result{}, err
	}
	if source, ok := c.Pods.(kubelet.FreshPods); ok { // a cache keeps only a part of a pod
		if pod, err = source.FreshPod(ctx, pod.Namespace, pod.Name); err != nil {
			return processor.Result{}, err
		}
	}
	pod = pod.DeepCopy()
	CleanPod(pod)
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	detail, err := json.Marshal(pod)
	if err != nil {
		return processor.Result{}, fmt.Errorf("encode pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return processor.Result{Values: map[string]string{keyPod: string(detail)}}, nil
}
