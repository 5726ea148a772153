// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
	"kubediag.org/kubediag/internal/podinfo"
)

// Survey has the findings on a node.
type Survey struct {
	Coverage mountstate.Coverage
	// Found are the binds that are not alive, in the order of the mount table. Those of a pod that is over are none, as no
	// container of it is started again, unless it is being deleted: then they can keep it from going.
	Found []Found
}

// Found is a bind that is not alive.
type Found struct {
	SubPath kubelet.SubPath
	// Pod is nil if it is not known.
	Pod  *corev1.Pod
	Bind Bind
}

// Scan looks at every subPath bind of every pod directory of the node. podOf gives a pod by its UID, nil if it is
// not known; podOf itself may be nil. A mount that the spec of a known pod does not ask for is passed over.
func Scan(ctx context.Context, node *kubelet.Node, from Sources, podOf func(uid string) *corev1.Pod) (*Survey, error) {
	survey := &Survey{}
	table, err := node.Mounts(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep subPath binds of %s: %w", node, err)
	}
	points := bindPoints(node, table)
	asked, err := questions{prober: from.Prober, node: node}.askIn(ctx, table, podOf, points)
	if err == nil {
		err = node.Do(ctx, func() error {
			volumes := &surveyVolumes{found: map[podVolume]openedVolume{}}
			defer volumes.close()
			return survey.inspectAll(ctx, node, points, knowledge{table, podOf, asked, volumes})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("sweep subPath binds of %s: %w", node, err)
	}
	habits := node.Habits()
	for i := range survey.Found {
		survey.Found[i].Bind.AddOutlook(ctx, habits, from.Runtime, survey.Found[i].Pod)
	}
	if renews, err := node.ReplacesStaleBinds(); err == nil {
		survey.Coverage.RenewsBinds = &renews
	}
	return survey, nil
}

// Summary is the survey as all looks give it. A bind that the kubelet renews or unmounts by itself is counted, and is no
// fault.
func (s *Survey) Summary() mountstate.Survey {
	sum := mountstate.Survey{Coverage: s.Coverage, Evidence: func() any { return s.Evidence() }}
	for _, found := range s.Found {
		switch {
		case found.Bind.Verdict == Unproven:
			sum.Unknown.AddPlace(mountstate.Place{
				Pod: found.pod(), Volume: found.SubPath.Volume, Point: found.Bind.State.Point, Reason: found.Bind.Reason,
			})
		case found.Bind.LeftToKubelet():
			sum.Coverage.Renewed++
		default:
			sum.Findings = append(sum.Findings, found.Finding(s.Coverage.Namespace))
		}
	}
	return sum
}

// knowledge is that of a survey before it looks at binds.
type knowledge struct {
	table *mountinfo.Table
	podOf func(uid string) *corev1.Pod // may be nil
	asked Answers
	// volumes are those that were opened or found.
	volumes *surveyVolumes
}

// bindPoints lists the places of subPath binds where mounts are, each once, in the order of the table.
func bindPoints(node *kubelet.Node, table *mountinfo.Table) []string {
	return slices.DeleteFunc(mountPoints(table.Under(node.PodsDir())), func(point string) bool {
		_, ok := node.ParseSubPath(point)
		return !ok
	})
}

// inspectAll runs inside the namespace.
func (s *Survey) inspectAll(ctx context.Context, node *kubelet.Node, points []string, known knowledge) error {
	ns, err := mountns.Self()
	if err != nil {
		return err
	}
	s.Coverage.Namespace, s.Coverage.Mounts = ns.Inode, len(known.table.Mounts())
	entries, err := os.ReadDir(node.PodsDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list pod directories: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			s.Coverage.Pods++
		}
	}
	for _, point := range points {
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
	target, ok := targetAt(node, pod, point)
	if !ok {
		return
	}
	target.answers, target.volumes = known.asked[point], known.volumes
	bind, there, err := target.inspect(point)
	if err != nil {
		bind, there = notInspected(podinfo.SubPathMount{}, mount.State{ID: mount.ID{Point: point}}, err.Error()), true
	}
	if !there {
		return
	}
	s.Coverage.Binds++
	leaving := pod != nil && pod.DeletionTimestamp != nil
	if bind.Verdict == WrongSource && leaving {
		return // nothing of it hurts any more
	}
	if bind.Verdict.isFault() && (pod == nil || !podinfo.Ended(pod) || leaving) {
		bind.Describe(node, place.PodUID, known.table)
		s.Found = append(s.Found, Found{place, pod, bind})
	}
}

// Finding returns the fault. It has no code if nothing is proven.
// namespace is the inode number of the mount namespace.
func (f Found) Finding(namespace uint64) fault.Finding {
	return f.Bind.findingOf(f.pod(), f.Pod, namespace)
}

// pod names the pod, as far as it is known.
func (f Found) pod() fault.Pod {
	if f.Pod == nil {
		return fault.Pod{UID: f.SubPath.PodUID}
	}
	return podinfo.PodOf(f.Pod)
}
