// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/config/operations"
	"kubediag.org/kubediag/config/samples"
	"kubediag.org/kubediag/internal/builtin/registry"
	"kubediag.org/kubediag/internal/linux/sys"
)

// The content of the ConfigMap before and after its update.
const (
	oldContent = "rotate 7"
	newContent = "rotate 14"
)

// subPathAct causes the failure of kubernetes#68211, and has the manifests of the walkthrough repair it.
func subPathAct(ctx context.Context, s *story) (*v1.Diagnosis, error) {
	s.beginAct("Act 1: a ConfigMap changes under a subPath (kubernetes#68211, before 1.19)")
	node, err := breakSubPath(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("cause the fault: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go node.syncLoop(ctx)
	r := &diagnosisRun{story: s}
	d, err := r.run(ctx, node.root, "subpath-remount-diagnosis", registry.Deps{Pods: node, Runtime: node}, operations.SubPathRemount,
		samples.Diagnosis)
	if err != nil {
		return nil, err
	}
	content := node.contentLine()
	if content != newContent {
		return nil, fmt.Errorf("the container reads %q, not the new content", content)
	}
	s.printStep(good, "Done, proven in the mount table. The container reads %q", content)
	return d, nil
}

// breakSubPath plays the life of the pod up to where its container cannot start again.
func breakSubPath(ctx context.Context, s *story) (*demoKubelet, error) {
	node, err := newDemoKubelet(s.dir, oldContent+"\n")
	if err != nil {
		return nil, err
	}
	if err := node.startContainer(); err != nil {
		return nil, err
	}
	s.printStep(good, "A pod of core2 reads %q from a ConfigMap, by subPath", node.contentLine())
	if err := node.updateVolume(newContent + "\n"); err != nil {
		return nil, err
	}
	if err := node.stopContainer(ctx); err != nil {
		return nil, err
	}
	err = node.startContainer()
	if !errors.Is(err, sys.ENOENT) {
		return nil, fmt.Errorf("the container started: %w", err)
	}
	s.printStep(bad, "The ConfigMap changes. Restarts fail: %s", reason(err))
	return node, nil
}
