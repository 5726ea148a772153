// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults/searches"
	"kubediag.org/kubediag/internal/kubelet"
	asking "kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/mountstate"
)

// scanSource answers all that a scan asks of a node: the node itself, or a bundle that was made on it.
type scanSource interface {
	// entries lists the directory of the pods. It fails if there is none.
	entries(ctx context.Context) ([]string, error)
	podUIDs(ctx context.Context) ([]string, error)
	// look makes a search.
	look(ctx context.Context, s searches.Search, n searches.Node) (mountstate.Survey, error)
	runtimeNames(ctx context.Context) (podNames, error)
	logNames(ctx context.Context) (podNames, error)
	states(ctx context.Context, wanted func(podUID, container string) bool) ([]cri.State, error)
	// unseen returns the gaps about other processes and the runtime. A survey could not read denied processes, and read
	// partial mount namespaces in part.
	unseen(denied, partial int) (refusing int, gaps []mountstate.Gap)
}

// nodeSource asks the node that this process runs on.
type nodeSource struct {
	node     *kubelet.Node
	runtime  *boundedRuntime
	prober   *asking.Prober // one for all searches
	recorder *nodeRecorder  // of the answers; nil: none
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

func (n nodeSource) look(ctx context.Context, s searches.Search, of searches.Node) (mountstate.Survey, error) {
	of.Kubelet, of.Prober, of.Runtime, of.Devices = n.node, n.prober, n.runtime, newInspector(n.node, n.runtime)
	if of.Specs != nil {
		of.Devices.Specs = of.Specs
	}
	found, err := s.On(of).Look(ctx, mountstate.Scope{})
	if err == nil && found.Evidence != nil {
		n.recorder.record(func(has *nodeRecording) { has.evidence[s.Entry] = found.Evidence() })
	}
	return found, err
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

func (n nodeSource) unseen(denied, partial int) (refusing int, gaps []mountstate.Gap) {
	refusing, pids := searches.HidingMounts(denied)
	gaps = append(hiddenProcessGaps(refusing, pids, partial), n.runtime.coverageGaps()...)
	n.recorder.record(func(has *nodeRecording) { has.node.Denied, has.node.Gaps = refusing, gaps })
	return refusing, gaps
}
