// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package links looks for the volumes that pods want and that are not there, and says why each mount of the kubelet is there.
//
// It reads the kubelet's table, the directories of pods, and the container runtime's records of containers with the mount tables of these, and no
// file system that may hang. Package mountstate decides. A link that is not there is looked for again, in a table that is read after the pods, and counts only if a part of its pod ran before and after that: the kubelet
// makes the volumes of a pod before its first container, and unmounts them after the last one has ended.
//
// It rests on kubernetes/pkg/kubelet/volumemanager.
package links

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

// Runtime is the container runtime of this node: a *cri.Client.
type Runtime interface {
	cri.PodRuntime
	// Running lists the running containers of the wanted pods.
	Running(ctx context.Context, wanted func(podUID string) bool) ([]cri.Owner, error)
}

// Inspector looks at the links of a node.
type Inspector struct {
	Kubelet kubelet.Locator
	// Runtime is nil if there is none: then the processes of the node say alone whether a pod runs, and no container is looked at.
	Runtime Runtime
	// Pods lists the pods whose specs are known; nil: there are none.
	Pods func() []*corev1.Pod
}

// Look looks at the pods of a scope, and at all mounts if that is the node.
func (i *Inspector) Look(ctx context.Context, s mountstate.Scope) (sum mountstate.Survey, err error) {
	node, err := i.Kubelet.Node(ctx)
	if err != nil {
		return sum, err
	}
	inScope := func(source mountstate.PodSource) bool {
		return s.Includes(source.UID, s.Volume) || source.Spec != nil && s.Includes(string(source.Spec.UID), s.Volume)
	}
	n, err := i.read(ctx, node, inScope, len(s.PodUIDs) == 0)
	if err != nil {
		return sum, fmt.Errorf("look at the links of pods: %w", err)
	}
	verdicts := n.facts.Evaluate(&node.Layout)
	sum = n.facts.SurveyOf(&node.Layout, verdicts)
	var gap error
	if doubtful := n.missing(verdicts); len(doubtful) > 0 {
		gap = i.confirm(ctx, n, doubtful)
		sum = n.facts.Survey(&node.Layout)
	}
	if ctx.Err() != nil {
		return sum, context.Cause(ctx)
	}
	if len(s.PodUIDs) > 0 {
		sum.Mounts = nil
	}
	if gap != nil {
		sum.Unknown.AddGap("volumes that are not there", gap.Error())
	}
	if n.silent != nil && !errors.Is(n.silent, kubelet.ErrNoRuntime) {
		sum.Coverage.Notes = append(sum.Coverage.Notes, fmt.Sprintf("the mounts in containers were not compared with the container runtime's records: %v", n.silent))
	}
	facts := n.facts
	sum.Evidence = func() any { return facts }
	return sum, nil
}

// reading has the facts that were read of a node.
type reading struct {
	node    *kubelet.Node
	table   *mountinfo.Table
	sources []mountstate.PodSource
	facts   *mountstate.Facts
	// silent is why the container runtime did not say which containers run.
	silent error
}

// read reads the mount table first and the pods after it, so that a pod that came between both lacks its mounts, and is looked at again. Without all,
// it leaves out the mounts of other pods and of the node. They decide nothing about the links of the pods in scope.
func (i *Inspector) read(ctx context.Context, node *kubelet.Node, inScope func(mountstate.PodSource) bool, all bool) (n *reading, err error) {
	n = &reading{node: node}
	if n.table, err = node.Mounts(ctx); err != nil {
		return nil, err
	}
	uids, err := node.PodUIDs(ctx)
	if err != nil {
		return nil, err
	}
	var specs []*corev1.Pod
	if i.Pods != nil {
		specs = i.Pods()
	}
	n.sources = slices.DeleteFunc(mountstate.SourcesOf(uids, specs), func(s mountstate.PodSource) bool { return !inScope(s) })
	err = node.Do(ctx, func() error {
		for i := range n.sources {
			s := &n.sources[i]
			if s.Places, err = node.PodVolumes(s.UID); err != nil {
				s.Unlisted = err.Error()
			}
			n.addWritten(s)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if i.Runtime != nil && len(n.sources) > 0 {
		n.silent = n.addContainers(ctx, i.Runtime)
	}
	n.facts = &mountstate.Facts{}
	if all {
		n.facts.Mounts = mountstate.Observe(&node.Layout, n.table)
	} else {
		uids := map[string]bool{}
		for _, s := range n.sources {
			uids[s.UID] = true
		}
		n.facts.Mounts = mountstate.ObservePods(&node.Layout, n.table, uids)
	}
	n.facts.Pods, n.facts.Links = mountstate.Desired(&node.Layout, n.sources, time.Now())
	return n, nil
}

// addWritten reads the symbolic links of drivers and the kubelet's records among the places of a pod: the latter may say whose a staging path is. It
// notes the places that lack a record, or the content that the kubelet writes. It is called inside the kubelet's namespace.
func (n *reading) addWritten(s *mountstate.PodSource) {
	lacks := map[string]string{}
	for _, v := range s.Places {
		point := n.node.VolumePoint(v)
		switch {
		case v.Block: // its record is elsewhere
		case v.Plugin == kubelet.CSIPlugin:
			if len(n.table.All(point)) == 0 {
				if to := kubelet.Symlink(point); to != "" {
					if s.Symlinks == nil {
						s.Symlinks = map[string]string{}
					}
					s.Symlinks[point] = to
				}
			}
			record, err := kubelet.ReadVolumeRecordAt(n.table, point)
			if err != nil {
				lacks[point] = fmt.Sprintf("the kubelet's record of the volume cannot be used, and without it the kubelet cannot take the volume down: %v", err)
				continue
			}
			s.Records = append(s.Records, record)
		case kubelet.WritesAtomically(v.Plugin):
			if err := kubelet.CheckContent(n.table, point); err != nil {
				lacks[point] = fmt.Sprintf("the content that the kubelet writes is not there: %v", err)
			}
		}
	}
	if len(lacks) > 0 {
		s.Lacks = lacks
	}
}

// maxCompareThreads is how many threads read the mount tables of containers, and containersPerThread how many are worth a thread: one table
// takes the kernel half a millisecond.
const maxCompareThreads, containersPerThread = 4, 16

// addContainers adds the mounts of the running containers of the pods. A container whose table is not known has none. Few tables are in memory at a
// time: each is dropped after its comparison.
func (n *reading) addContainers(ctx context.Context, of Runtime) error {
	at := map[string]int{}
	for i, s := range n.sources {
		at[s.UID] = i
	}
	running, err := of.Running(ctx, func(uid string) bool { _, ok := at[uid]; return ok })
	compared := make([][]mountstate.ContainerMount, len(running))
	var next atomic.Int64
	var done sync.WaitGroup
	for range min(1+len(running)/containersPerThread, runtime.GOMAXPROCS(0), maxCompareThreads) {
		done.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(running); i = int(next.Add(1)) - 1 {
				compared[i] = n.compareContainer(&running[i], n.sources[at[running[i].PodUID]].Symlinks)
			}
		})
	}
	done.Wait()
	for i, mounts := range compared {
		s := &n.sources[at[running[i].PodUID]]
		s.Mounts = append(s.Mounts, mounts...)
	}
	return err
}

// compareContainer returns the mounts of a container, compared with the table of its first process. There are none if that is not known. The symbolic
// links are those of its pod, by their places.
func (n *reading) compareContainer(c *cri.Owner, symlinks map[string]string) (mounts []mountstate.ContainerMount) {
	if c.PID == 0 {
		return nil
	}
	text, err := sys.ReadProc(strconv.Itoa(c.PID)+"/cgroup", nil)
	if err != nil || !slices.Contains(cri.ContainerIDs(string(text)), c.ContainerID) {
		return nil // the runtime may count processes in another PID namespace
	}
	own, err := mountns.Table(c.PID)
	if err != nil {
		return nil // it has ended
	}
	for _, m := range c.Mounts {
		if m.HostPath != "" { // else it comes out of an image
			from := n.node.OwnPath(m.HostPath, c.PodUID)
			mounts = append(mounts, mountstate.ContainerMount{
				Container: c.Container, ID: c.ContainerID, From: from, Link: symlinks[from], Point: path.Clean("/" + m.ContainerPath),
			})
		}
	}
	if !mountstate.CompareContainer(n.table, own, n.node.PodDir(c.PodUID), mounts) {
		return nil
	}
	return mounts
}

// linkName names a link in two readings.
type linkName struct {
	kind                mountstate.LinkKind
	pod, plugin, volume string
	container, point    string
}

// missing are the links that were not found by the verdicts, with their numbers.
func (n *reading) missing(verdicts []mountstate.Verdict) map[linkName]int {
	found := map[linkName]int{}
	for i, v := range verdicts {
		if l := n.facts.Links[i]; v.Asks {
			name := linkName{kind: l.Kind, pod: l.PodUID, plugin: l.Plugin, volume: l.Volume}
			if l.Mount != nil {
				name.container, name.point = l.Mount.ID, l.Mount.Point
			}
			found[name] = i
		}
	}
	return found
}

// confirm looks again for links that were not found. Those of pods that do not run are left as they are.
func (i *Inspector) confirm(ctx context.Context, n *reading, doubtful map[linkName]int) error {
	pods := map[string]bool{}
	for name := range doubtful {
		pods[name.pod] = true
	}
	before, err := cri.PodsRun(ctx, i.Runtime, slices.Sorted(maps.Keys(pods))...)
	if err != nil || len(before) == 0 {
		return err
	}
	again, err := i.read(ctx, n.node.Live(), func(s mountstate.PodSource) bool { return before[s.UID] != "" }, false)
	if err != nil {
		return err
	}
	still := again.missing(again.facts.Evaluate(&again.node.Layout))
	clear(pods)
	for name := range still {
		pods[name.pod] = true
	}
	after, err := cri.PodsRun(ctx, i.Runtime, slices.Sorted(maps.Keys(pods))...)
	for name, at := range doubtful {
		if _, ok := still[name]; ok {
			n.facts.Links[at].Runs = after[name.pod]
		}
	}
	return err
}
