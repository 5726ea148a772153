// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package orphan

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

// hashAnnotation has the UID by which the kubelet knows a static pod, as the annotation of a mirror pod has.
const hashAnnotation = "kubernetes.io/config.hash"

// maxSandboxes is from how many sandboxes on a list may not be whole: package cri tells of no more.
const maxSandboxes = 10_000

// serverUID is what an API server gives pods for a UID. That of a static pod has no dashes, unless somebody chose one.
var serverUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// sources is what those know who may know of a pod.
type sources struct {
	server, runtime map[string]bool // UIDs; nil where it could not be asked
	unasked         []string
}

// ask asks both.
func (i *Inspector) ask(ctx context.Context) sources {
	var s sources
	var err error
	if s.server, err = i.askServer(ctx); err != nil {
		s.unasked = append(s.unasked, "the API server could not be asked: "+err.Error())
	}
	if s.runtime, err = i.askRuntime(ctx); err != nil {
		s.unasked = append(s.unasked, "the container runtime could not be asked: "+err.Error())
	}
	if len(s.unasked) == 0 && !s.agree() {
		s.unasked = append(s.unasked, "the API server and the container runtime know no pod in common, so they may speak of different nodes")
	}
	return s
}

func (i *Inspector) askServer(ctx context.Context) (map[string]bool, error) {
	if i.Pods == nil {
		return nil, errors.New("there is no connection to it")
	}
	pods, err := i.Pods.PodsNow(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, pod := range pods {
		for _, uid := range []string{string(pod.UID), pod.Annotations[corev1.MirrorPodAnnotationKey], pod.Annotations[hashAnnotation]} {
			known[uid] = true
		}
	}
	delete(known, "")
	return known, nil
}

func (i *Inspector) askRuntime(ctx context.Context) (map[string]bool, error) {
	if i.Runtime == nil {
		return nil, errors.New("none is known")
	}
	sandboxes, err := i.Runtime.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	if len(sandboxes) >= maxSandboxes {
		return nil, fmt.Errorf("it has %d sandboxes or more, and does not tell of all", maxSandboxes)
	}
	known := map[string]bool{}
	for _, s := range sandboxes {
		known[s.PodUID] = true
	}
	return known, nil
}

// contained says for each pod, where there is anything to say, why it is not proven that it has no container. A runtime
// removes containers with their sandbox; one may have been removed behind its back.
func (i *Inspector) contained(ctx context.Context, uids []string, from sources) map[string]string {
	why := map[string]string{}
	if from.runtime == nil {
		return why // which is said already
	}
	for _, uid := range uids {
		records, err := i.Runtime.PodRecords(ctx, uid)
		switch {
		case err != nil:
			why[uid] = "the container runtime could not be asked for its containers: " + err.Error()
		case len(records) > 0:
			why[uid] = fmt.Sprintf("the container runtime has a container %q of that pod", records[0].Name)
		}
	}
	return why
}

// agree tells whether the two speak of one node. That of the wrong node would know none of the pods of ours.
func (s sources) agree() bool {
	for uid := range s.server {
		if s.runtime[uid] {
			return true
		}
	}
	return false
}

// knows says who knows the pod; empty: nobody.
func (s sources) knows(uid string) string {
	switch {
	case s.server[uid]:
		return "the API server knows a pod of that UID on this node"
	case s.runtime[uid]:
		return "the container runtime has a sandbox of that pod"
	}
	return ""
}
