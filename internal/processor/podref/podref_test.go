// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package podref

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/processor"
)

// broken is a source of pods that has lost its connection.
type broken struct{}

var errBroken = errors.New("no connection")

func (broken) Pod(context.Context, string, string) (*corev1.Pod, error) { return nil, errBroken }

func TestLoad(t *testing.T) {
	t.Parallel()
	ask := processor.Request{Node: kubelettest.NodeName, Pod: processor.Pod{Namespace: "default", Name: "web"}}
	for name, c := range map[string]struct {
		request   func(*processor.Request)
		pod       func(*corev1.Pod)
		elsewhere string
		err       string
	}{
		"as it should be":    {},
		"one container":      {request: func(r *processor.Request) { r.Pod.Container = "sidecar" }},
		"no name":            {request: func(r *processor.Request) { r.Pod.Name = "" }, err: `podReference: namespace is "default" and name is ""`},
		"no namespace":       {request: func(r *processor.Request) { r.Pod.Namespace = "" }, err: `namespace is ""`},
		"no such pod":        {request: func(r *processor.Request) { r.Pod.Name = "gone" }, err: "default/gone"},
		"no such container":  {request: func(r *processor.Request) { r.Pod.Container = "x" }, err: `no container "x"`},
		"no UID":             {pod: func(p *corev1.Pod) { p.UID = "" }, err: "no UID"},
		"on another node":    {request: func(r *processor.Request) { r.Node = "other" }, elsewhere: `on node "my-node", and this is node "other"`},
		"not scheduled":      {pod: func(p *corev1.Pod) { p.Spec.NodeName = "" }, elsewhere: "not bound to a node"},
		"mirror of a static": {pod: func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, elsewhere: "static pod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, pod, pods := ask, kubelettest.NewPod(), &kubelettest.Pods{}
			if c.request != nil {
				c.request(&r)
			}
			if c.pod != nil {
				c.pod(pod)
			}
			pods.Set(pod)
			_, elsewhere, err := Load(t.Context(), pods, r)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !processor.IsStalled(err) {
					t.Errorf("error %v, want a stalled one with %q", err, c.err)
				}
				return
			}
			if err != nil || (elsewhere == "") != (c.elsewhere == "") || !strings.Contains(elsewhere, c.elsewhere) {
				t.Errorf("elsewhere %q, error %v, want %q", elsewhere, err, c.elsewhere)
			}
		})
	}
	if _, _, err := Load(t.Context(), broken{}, ask); !errors.Is(err, errBroken) || processor.IsStalled(err) {
		t.Errorf("error %v, want one that is tried again", err)
	}
}
