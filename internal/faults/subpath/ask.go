// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package subpath

import (
	"context"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/podinfo"
)

// Sources are asked beside the kernel.
type Sources struct {
	// Prober asks file systems that may not answer. Nil: nothing asks them, and of their binds only those are stale that the
	// kernel proves to be.
	Prober faults.Prober
	// Runtime knows the containers of pods that are being deleted; nil: there is none.
	Runtime cri.PodRuntime
	// ClaimPaths reads where the claims of pods lie; nil: that is not known.
	ClaimPaths ClaimPaths
}

// Answers are those of file systems of which the kernel alone proves nothing, by the place of a bind.
type Answers map[string]*answers

// answers are those about one bind.
type answers struct {
	// Bind is the answer of the bind itself.
	Bind probe.Answer `json:"bind"`
	// Volume is that of the mount of the same file system that the subPath is looked up in, and Source that of what the
	// subPath names there now. Nil: no such mount is known.
	Volume *probe.Answer `json:"volume,omitempty"`
	Source *probe.Answer `json:"source,omitempty"`
	// OfVolume is whether that mount is a volume of the pod, which is judged as such.
	OfVolume bool `json:"ofVolume,omitempty"`
	// VolumeGone is whether the bind is on FUSE, its pod is being deleted, and the pod's volume is not mounted any more. Those who judge volumes
	// then judge the bind if it does not answer.
	VolumeGone bool `json:"volumeGone,omitempty"`
	// Unstable is whether bind or source gave another inode number when they were asked again.
	Unstable bool `json:"unstable,omitempty"`
}

// Ask asks the file systems of subPath binds that are not local, as the pods' specs have them; a nil prober asks nothing.
// points are the binds; nil: all of the node. podOf gives a pod by its UID, nil if it is not known. It is not called inside
// the kubelet's namespace.
func Ask(ctx context.Context, prober faults.Prober, node *kubelet.Node, podOf func(uid string) *corev1.Pod, points []string) (Answers, error) {
	if prober == nil || points != nil && len(points) == 0 {
		return nil, nil
	}
	table, err := node.Mounts(ctx)
	if err != nil {
		return nil, err
	}
	return questions{prober: prober, node: node}.askIn(ctx, table, podOf, points)
}

// askIn is Ask of a mount table.
func (q questions) askIn(ctx context.Context, table *mountinfo.Table, podOf func(uid string) *corev1.Pod, points []string) (found Answers, err error) {
	node := q.node
	if q.namespace, err = node.Namespace(); err != nil || q.prober == nil {
		return nil, err
	}
	if points == nil {
		points = bindPoints(node, table)
	}
	found = Answers{}
	for _, point := range points {
		place, ok := node.ParseSubPath(point)
		if !ok {
			continue
		}
		bound, there := table.Top(point)
		if !there || isLocalType(bound.FSType) {
			continue
		}
		var pod *corev1.Pod
		if podOf != nil {
			pod = podOf(place.PodUID)
		}
		if target, ok := targetAt(node, pod, point); ok {
			found[point] = q.add(target, bound, table)
		}
	}
	return found, q.askQuestions(ctx)
}

// questions are about several binds, in an order: to look a name up can have the kernel forget the directory
// that was bound by it, as the kubelet's own lookup can. So that is asked before the bind.
type questions struct {
	prober         faults.Prober
	node           *kubelet.Node
	namespace      mountns.Namespace
	sources, binds []question
}

// question is one target, and where its answer is kept.
type question struct {
	target probe.Target
	answer *probe.Answer
	of     *answers
}

// add adds the questions about a bind.
func (q *questions) add(target target, bound mountinfo.Mount, table *mountinfo.Table) *answers {
	a := &answers{}
	uid := target.place.PodUID
	ask := func(m mountinfo.Mount, below string, to *probe.Answer) question {
		id := mount.IDOf(mountns.Mount{Mount: m, Unique: q.node.UniqueID(m.ID)})
		return question{probe.Target{Namespace: q.namespace, ID: id, Point: m.Point, Below: below, Bind: true, Owner: uid}, to, a}
	}
	q.binds = append(q.binds, ask(bound, "", &a.Bind))
	volume, below, ofVolume := target.findSource(bound, table)
	a.VolumeGone = !ofVolume && target.pod != nil && target.pod.DeletionTimestamp != nil && strings.HasPrefix(bound.FSType, "fuse")
	if volume.ID == 0 {
		return a
	}
	a.Volume, a.OfVolume = &probe.Answer{}, ofVolume
	q.sources = append(q.sources, ask(volume, "", a.Volume))
	if below != "" && below != "." {
		a.Source = &probe.Answer{}
		q.sources = append(q.sources, ask(volume, below, a.Source))
	}
	return a
}

// findSource finds the mount in which the subPath of a bind is looked up, and the way from its root: the volume's mount in
// the pod's directory, or another one that shows that part of the file system.
func (s target) findSource(bound mountinfo.Mount, table *mountinfo.Table) (volume mountinfo.Mount, below string, ofVolume bool) {
	root, _ := mountinfo.Deleted(bound.Root)
	shows := func(m mountinfo.Mount) bool {
		top, _ := table.Top(m.Point)
		return top.ID == m.ID && m.ID != bound.ID && !m.Deleted()
	}
	for _, m := range table.Under(s.node.PodDir(s.place.PodUID)) {
		if v, ok := s.node.ParseVolume(m.Point); !ok || v.Name != s.place.Volume || !shows(m) {
			continue
		}
		if s.pod != nil {
			if name := podinfo.SubPathName(s.pod, s.expected); name != "" {
				return m, path.Clean(name), true
			}
		}
		below, _ := mountinfo.Below(m.Root, root)
		return m, below, true
	}
	for _, m := range table.Mounts() {
		if m.Major != bound.Major || m.Minor != bound.Minor || !shows(m) {
			continue
		}
		if _, isBind := s.node.ParseSubPath(m.Point); isBind {
			continue
		}
		if below, ok := mountinfo.Below(m.Root, root); ok {
			return m, below, false
		}
	}
	return mountinfo.Mount{}, "", false
}

// askQuestions asks, and asks again where an inode number alone would decide.
func (q *questions) askQuestions(ctx context.Context) error {
	if err := q.ask(ctx, q.sources); err != nil {
		return err
	}
	if err := q.ask(ctx, q.binds); err != nil {
		return err
	}
	var again []question
	seen := map[*probe.Answer]*probe.Answer{}
	for _, asked := range slices.Concat(q.sources, q.binds) {
		if a := asked.of; a.sourceReplaced() && (asked.answer == a.Source || asked.answer == &a.Bind) {
			seen[asked.answer] = &probe.Answer{}
			again = append(again, question{asked.target, seen[asked.answer], a})
		}
	}
	if err := q.ask(ctx, again); err != nil {
		return err
	}
	for first, second := range seen {
		for _, asked := range again {
			if asked.answer == second && second.Stat != first.Stat {
				asked.of.Unstable = true
			}
		}
	}
	return nil
}

// ask asks all. An error of the prober alone stands in their answers.
func (q *questions) ask(ctx context.Context, all []question) error {
	list := make([]faults.Question, len(all))
	for i, asked := range all {
		list[i] = faults.Question{Target: asked.target, Receive: func(a probe.Answer) { *asked.answer = a }}
	}
	return faults.AskAll(ctx, q.prober, list, func(error) {})
}
