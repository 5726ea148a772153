// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

func TestRequestsWithoutInspection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*processor.Request, *corev1.Pod)
		reason string // of a clean negative
		stall  string // part of an error that is not tried again
		err    error
	}{
		"no pod named":   {change: func(r *processor.Request, _ *corev1.Pod) { r.Pod = processor.Pod{} }, stall: "podReference"},
		"no such pod":    {change: func(r *processor.Request, _ *corev1.Pod) { r.Pod.Name = "gone" }, stall: "default/gone"},
		"other node":     {change: func(r *processor.Request, _ *corev1.Pod) { r.Node = "other" }, reason: `node "other"`},
		"not scheduled":  {change: func(_ *processor.Request, p *corev1.Pod) { p.Spec.NodeName = "" }, reason: "not bound to a node"},
		"no subPath":     {change: func(_ *processor.Request, p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }, reason: "no volume with a subPath"},
		"no kubelet yet": {change: func(*processor.Request, *corev1.Pod) {}, err: kubelet.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, pods := kubelettest.NewPod(), &kubelettest.Pods{}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configmap", MountPath: "/x", SubPath: "key"}}
			r := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: "default", Name: "web"}}
			c.change(&r, pod)
			pods.Set(pod)
			result, err := (&Diagnoser{Pods: pods, Kubelet: noKubelet{}}).Run(t.Context(), r)
			switch {
			case c.stall != "":
				if !processor.IsStalled(err) || !strings.Contains(err.Error(), c.stall) {
					t.Errorf("error %v, want a stalled one with %q", err, c.stall)
				}
			case c.err != nil:
				if !errors.Is(err, c.err) || processor.IsStalled(err) {
					t.Errorf("error %v, want %v, to be tried again", err, c.err)
				}
			case err != nil || !strings.Contains(result.NotApplicable, c.reason):
				t.Errorf("reason %q, error %v, want %q", result.NotApplicable, err, c.reason)
			}
		})
	}
}
