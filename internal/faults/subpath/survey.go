// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/podinfo"
)

// Survey is what was found on a node.
type Survey struct {
	Scope
	// Found are the binds that are not alive, in the order of the mount table. Those of a pod that is over are none: no
	// container of it is started again.
	Found []Found
}

// Scope is what a survey has looked at.
type Scope struct {
	// Namespace is the inode number of the mount namespace.
	Namespace uint64 `json:"namespace"`
	// Pods counts the directories of pods, Mounts the lines of the kubelet's mount table, Binds the subPath binds that
	// were looked at.
	Pods   int `json:"pods"`
	Mounts int `json:"mounts"`
	Binds  int `json:"binds"`
	// ReplacesBinds says whether the kubelet replaces stale binds itself, ReplacesBindsKnown whether that is known.
	ReplacesBinds      bool `json:"renews"`
	ReplacesBindsKnown bool `json:"renewsKnown"`
}

// Found is a bind that is not alive.
type Found struct {
	SubPath kubelet.SubPath
	// Pod is nil if it is not known.
	Pod *corev1.Pod
	Bind
}

// Scan looks at every subPath bind of every pod directory of the node. podOf gives a pod by its UID, nil if it is
// not known; podOf itself may be nil. A mount that the spec of a known pod does not ask for is passed over.
func Scan(ctx context.Context, node *kubelet.Node, podOf func(uid string) *corev1.Pod) (*Survey, error) {
	survey := &Survey{}
	err := node.Do(ctx, func() error { return survey.inspectAll(ctx, node, podOf) })
	if err != nil {
		return nil, fmt.Errorf("sweep subPath binds of %s: %w", node, err)
	}
	renews, err := node.ReplacesStaleBinds()
	survey.ReplacesBinds, survey.ReplacesBindsKnown = renews, err == nil
	return survey, nil
}

// inspectAll runs inside the namespace.
func (s *Survey) inspectAll(ctx context.Context, node *kubelet.Node, podOf func(uid string) *corev1.Pod) error {
	ns, err := mountns.Self()
	if err != nil {
		return err
	}
	table, err := mountns.Table(0)
	if err != nil {
		return err
	}
	s.Namespace, s.Mounts = ns.Inode, len(table.Mounts())
	if s.Pods, err = countDirs(node.PodsDir()); err != nil {
		return err
	}
	for _, point := range mountPoints(table.Under(node.PodsDir())) {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.addBind(node, podOf, point, table)
	}
	return nil
}

// addBind adds one bind. One that cannot be looked at is not proven to be anything, and the others are looked at.
func (s *Survey) addBind(node *kubelet.Node, podOf func(uid string) *corev1.Pod, point string, table *mountinfo.Table) {
	place, ok := node.ParseSubPath(point)
	if !ok {
		return
	}
	var pod *corev1.Pod
	if podOf != nil {
		pod = podOf(place.PodUID)
	}
	bind, there, err := InspectBind(node, pod, point)
	if err != nil {
		bind, there = notInspected(podinfo.SubPathMount{}, mount.State{ID: mount.ID{Point: point}}, err.Error()), true
	}
	if !there {
		return
	}
	s.Binds++
	if bind.Verdict != Alive && (pod == nil || !podinfo.Ended(pod)) {
		bind.Describe(node, place.PodUID, table)
		s.Found = append(s.Found, Found{place, pod, bind})
	}
}

// countDirs counts the directories in dir; none if dir is not there.
func countDirs(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("list pod directories: %w", err)
	}
	count := 0
	for _, e := range entries {
		if e.IsDir() {
			count++
		}
	}
	return count, nil
}

// Finding returns what was found as a fault: StaleSubPath or MissingBindSource. It has no code if nothing is proven.
// namespace is the inode number of the mount namespace.
func (f Found) Finding(namespace uint64) fault.Finding {
	pod := fault.Pod{UID: f.SubPath.PodUID}
	if f.Pod != nil {
		pod = podinfo.PodOf(f.Pod)
	}
	return f.Bind.findingOf(pod, f.Pod, namespace)
}
