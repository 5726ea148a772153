// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"maps"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/device"
	"kubediag.org/kubediag/internal/faults/leaving"
	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	asking "kubediag.org/kubediag/internal/linux/probe"
)

// scanSource answers all that a scan asks of a node: the node itself, or a bundle that was made on it.
type scanSource interface {
	// entries lists the directory of the pods. It fails if there is none.
	entries(ctx context.Context) ([]string, error)
	podUIDs(ctx context.Context) ([]string, error)
	subPaths(ctx context.Context, specs podFile) (*subpath.Survey, error)
	badSources(ctx context.Context, pod *corev1.Pod) ([]fault.Finding, error)
	devices(ctx context.Context) ([]*device.Usage, error)
	volumes(ctx context.Context, specs podFile) (*volume.Survey, error)
	orphans(ctx context.Context, specs podFile) (*orphan.Survey, error)
	// leaving says how far the pods are that are being deleted.
	leaving(ctx context.Context, specs podFile) ([]leavingPod, error)
	runtimeNames(ctx context.Context) (podNames, error)
	logNames(ctx context.Context) (podNames, error)
	states(ctx context.Context, wanted func(podUID, container string) bool) ([]cri.State, error)
	// unseen says what could not be looked at of other processes and of the runtime, if a survey was refused denied
	// processes and saw partial mount namespaces in part.
	unseen(denied, partial int) (refusing int, gaps []coverageGap)
}

// nodeSource asks the node that this process runs on.
type nodeSource struct {
	node      *kubelet.Node
	runtime   *boundedRuntime
	orphanAge time.Duration
	recorder  *nodeRecorder // of the answers; nil: none
}

func (n nodeSource) entries(ctx context.Context) (names []string, err error) {
	err = n.node.Do(ctx, func() (err error) {
		names, err = entryNames(n.node.PodsDir())
		return err
	})
	n.recorder.record(func(has *nodeRecording) { has.node.Entries = names })
	return names, err
}

// entryNames lists a directory.
func entryNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (n nodeSource) podUIDs(ctx context.Context) ([]string, error) {
	uids, err := n.node.PodUIDs(ctx)
	n.recorder.record(func(has *nodeRecording) { has.node.PodUIDs = uids })
	return uids, err
}

func (n nodeSource) subPaths(ctx context.Context, specs podFile) (*subpath.Survey, error) {
	s, err := subpath.Scan(ctx, n.node, subpath.Sources{Prober: &asking.Prober{}, Runtime: n.runtime}, specs.PodByUID)
	if err == nil {
		n.recorder.record(func(has *nodeRecording) { has.subPaths = new(s.Evidence()) })
	}
	return s, err
}

func (n nodeSource) badSources(ctx context.Context, pod *corev1.Pod) ([]fault.Finding, error) {
	if n.recorder == nil {
		return subpath.BadSources(ctx, n.node, pod, "")
	}
	var l subpath.Lookups
	found, err := l.Ask(ctx, n.node, pod)
	if err == nil {
		n.recorder.record(func(has *nodeRecording) {
			if has.sources == nil {
				has.sources = &subpath.Lookups{}
			}
			has.sources.Merge(l)
		})
	}
	return found, err
}

func (n nodeSource) devices(ctx context.Context) ([]*device.Usage, error) {
	cases, e, err := newInspector(n.node, n.runtime).FindAbandonedWithEvidence(ctx)
	n.recorder.record(func(has *nodeRecording) { has.devices = e })
	return cases, err
}

func (n nodeSource) volumes(ctx context.Context, specs podFile) (*volume.Survey, error) {
	i := &volume.Inspector{
		Kubelet: n.node, Prober: &asking.Prober{}, Runtime: n.runtime,
	}
	if specs != nil {
		i.Pods = specs
	}
	s, err := i.Inspect(ctx, volume.Selection{})
	if err == nil {
		n.recorder.record(func(has *nodeRecording) { has.volumes = new(s.Record()) })
	}
	return s, err
}

func (n nodeSource) orphans(ctx context.Context, specs podFile) (*orphan.Survey, error) {
	i := &orphan.Inspector{Kubelet: n.node, Runtime: n.runtime, MinimumAge: n.orphanAge}
	if specs != nil {
		i.Pods = specs
	}
	s, err := i.Survey(ctx)
	if err == nil {
		n.recorder.record(func(has *nodeRecording) { has.orphans = new(s.Evidence()) })
	}
	return s, err
}

// leavingPod is a pod whose time is over and of which something is still there.
type leavingPod struct {
	Pod scanPod `json:"pod"`
	// Path is its directory, Why the sentence about it.
	Path string `json:"path"`
	Why  string `json:"why"`
}

func (n nodeSource) leaving(ctx context.Context, specs podFile) (stuck []leavingPod, err error) {
	i := leaving.Inspector{Kubelet: n.node, Runtime: n.runtime}
	pods := slices.DeleteFunc(slices.Collect(maps.Values(specs)), func(pod *corev1.Pod) bool { return pod == nil })
	states, err := i.Inspect(ctx, pods...)
	for _, s := range states {
		if s.Stuck {
			uid := string(s.Pod.UID)
			stuck = append(stuck, leavingPod{scanPodOf(uid, s.Pod), n.node.PodDir(uid), s.Text})
		}
	}
	slices.SortFunc(stuck, func(a, b leavingPod) int { return cmp.Compare(a.Path, b.Path) })
	n.recorder.record(func(has *nodeRecording) { has.node.Leaving = stuck })
	return stuck, err
}

func (n nodeSource) runtimeNames(ctx context.Context) (podNames, error) {
	sandboxes, err := n.runtime.Sandboxes(ctx)
	names := podNames{}
	for _, sandbox := range sandboxes {
		names[sandbox.PodUID] = kubelet.PodName{Namespace: sandbox.Namespace, Name: sandbox.Name}
	}
	n.recorder.record(func(has *nodeRecording) { has.node.RuntimeNames = recordNames(names, err) })
	return names, err
}

func (n nodeSource) logNames(ctx context.Context) (podNames, error) {
	names, err := n.node.PodNames(ctx)
	n.recorder.record(func(has *nodeRecording) { has.node.LogNames = recordNames(names, err) })
	return names, err
}

func (n nodeSource) states(ctx context.Context, wanted func(podUID, container string) bool) ([]cri.State, error) {
	states, err := n.runtime.States(ctx, wanted)
	n.recorder.record(func(has *nodeRecording) {
		if has.node.States = states; err != nil {
			has.node.StatesError = err.Error()
		}
	})
	return states, err
}

func (n nodeSource) unseen(denied, partial int) (refusing int, gaps []coverageGap) {
	refusing, pids := findRefusing(denied)
	gaps = append(hiddenProcessGaps(refusing, pids, partial), n.runtime.coverageGaps()...)
	n.recorder.record(func(has *nodeRecording) { has.node.Denied, has.node.Gaps = refusing, gaps })
	return refusing, gaps
}
