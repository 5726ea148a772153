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
	// Found are the binds that are not alive, in the order of the mount table. Those of a pod that is over are none, as no
	// container of it is started again, unless it is being deleted: then they can keep it from going.
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
func Scan(ctx context.Context, node *kubelet.Node, from Sources, podOf func(uid string) *corev1.Pod) (*Survey, error) {
	survey := &Survey{}
	table, err := node.Mounts(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep subPath binds of %s: %w", node, err)
	}
	asked, err := questions{prober: from.Prober, node: node}.askIn(ctx, table, podOf, nil)
	if err == nil {
		err = node.Do(ctx, func() error { return survey.inspectAll(ctx, node, knowledge{table, podOf, asked}) })
	}
	if err != nil {
		return nil, fmt.Errorf("sweep subPath binds of %s: %w", node, err)
	}
	habits := node.Habits()
	for i := range survey.Found {
		survey.Found[i].AddOutlook(ctx, habits, from.Runtime, survey.Found[i].Pod)
	}
	renews, err := node.ReplacesStaleBinds()
	survey.ReplacesBinds, survey.ReplacesBindsKnown = renews, err == nil
	return survey, nil
}

// knowledge is what a survey knows before it looks at binds.
type knowledge struct {
	table *mountinfo.Table
	podOf func(uid string) *corev1.Pod // may be nil
	asked Answers
}

// inspectAll runs inside the namespace.
func (s *Survey) inspectAll(ctx context.Context, node *kubelet.Node, known knowledge) error {
	ns, err := mountns.Self()
	if err != nil {
		return err
	}
	s.Namespace, s.Mounts = ns.Inode, len(known.table.Mounts())
	if s.Pods, err = countDirs(node.PodsDir()); err != nil {
		return err
	}
	for _, point := range mountPoints(known.table.Under(node.PodsDir())) {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.addBind(node, point, known)
	}
	return nil
}

// addBind adds one bind. One that cannot be looked at is not proven to be anything, and the others are looked at.
func (s *Survey) addBind(node *kubelet.Node, point string, known knowledge) {
	place, ok := node.ParseSubPath(point)
	if !ok {
		return
	}
	var pod *corev1.Pod
	if known.podOf != nil {
		pod = known.podOf(place.PodUID)
	}
	bind, there, err := InspectBind(node, pod, point, known.asked)
	if err != nil {
		bind, there = notInspected(podinfo.SubPathMount{}, mount.State{ID: mount.ID{Point: point}}, err.Error()), true
	}
	if !there {
		return
	}
	s.Binds++
	if bind.Verdict.isFault() && (pod == nil || !podinfo.Ended(pod) || pod.DeletionTimestamp != nil) {
		bind.Describe(node, place.PodUID, known.table)
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
