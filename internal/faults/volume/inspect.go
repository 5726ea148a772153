// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/mountstate"
)

// Runtime is the container runtime of this node: a *cri.Client.
type Runtime interface {
	// Owner returns the container that a process belongs to, from the text of its /proc/PID/cgroup.
	Owner(ctx context.Context, cgroup string) (cri.Owner, error)
}

// Inspector inspects the volumes of a node. Its fields are set before its first use; then it may be used by several
// goroutines.
type Inspector struct {
	Kubelet kubelet.Locator
	Prober  faults.Prober
	// Runtime is nil if there is none: then no copy in a container is replaced.
	Runtime Runtime
	// Pods is nil if pods are not known: then hostPath volumes are not looked at.
	Pods kubelet.PodCache
	// Runner runs Job for Apply; nil: one for each step.
	Runner *subprocess.Runner
	// Silence is for how long a connection must have been silent before Apply aborts it; 0: 30 seconds.
	Silence time.Duration

	questionRunner subprocess.Runner // bounds the processes that wait for a connection that is to be aborted
	ownerCache     ownerCache
	daemonCache    daemonCache
}

// Survey is the result of an inspection.
type Survey struct {
	// Volumes are those that were asked, healthy ones included, by pod, plugin and name.
	Volumes []*Health
	// Namespace is the inode number of the kubelet's mount namespace.
	Namespace uint64
	// Coverage and Unknown are the extent of the inspection.
	Coverage mountstate.Coverage
	Unknown  mountstate.Unknown
	// Silent is whether a file system did not answer for the first time: an inspection some seconds later finds whether it hangs.
	Silent bool
}

// Broken lists the volumes that have a fault, or a copy that has one.
func (s *Survey) Broken() []*Health {
	var broken []*Health
	for _, v := range s.Volumes {
		if v.Broken() {
			broken = append(broken, v)
		}
	}
	return broken
}

// Inspect inspects the volumes of a scope. It waits for file systems only as long as the prober does.
func (i *Inspector) Inspect(ctx context.Context, s mountstate.Scope) (*Survey, error) {
	began := time.Now()
	inspection, err := i.inspect(ctx, s)
	if err == nil {
		for _, v := range inspection.volumes {
			v.Copies = slices.DeleteFunc(v.Copies, (*Copy).isStaleSubPath)
		}
		err = i.addDaemons(ctx, inspection.volumes)
	}
	if err != nil {
		return nil, fmt.Errorf("inspect volumes: %w", err)
	}
	inspection.seen.Coverage.Took = time.Since(began)
	return &Survey{
		Volumes: inspection.volumes, Namespace: inspection.host.namespace.Inode, Coverage: inspection.seen.Coverage, Unknown: inspection.seen.Unknown,
		Silent: inspection.silent,
	}, nil
}

// inspection is what decides on repairs of the volumes of a scope.
type inspection struct {
	host    *hostMounts
	volumes []*Health
	copies  []*Copy // healthy ones included
	seen    mountstate.Survey
	silent  bool // see Survey
}

// inspect does the steps that decide on a repair.
func (i *Inspector) inspect(ctx context.Context, s mountstate.Scope) (*inspection, error) {
	host, err := readHostMounts(ctx, i.Kubelet)
	if err != nil {
		return nil, err
	}
	n := &inspection{host: host}
	n.seen.Coverage.Mounts = len(host.table.Mounts())
	enumerator := &enumerator{host: host, scope: s, seen: &n.seen, pods: i.Pods}
	volumes, err := enumerator.enumerate(ctx)
	if err != nil {
		return nil, err
	}
	prober := &batchProber{Prober: i.Prober, seen: &n.seen}
	evidence, err := prober.gatherEvidence(ctx, volumes)
	if err != nil {
		return nil, err
	}
	for _, of := range evidence {
		n.volumes = append(n.volumes, &Health{Evidence: *of, Verdict: Judge(*of)})
	}
	addUnknownVolumes(&n.seen.Unknown, n.volumes)
	host.judgeOwnDisks(&n.seen.Unknown)
	if err := prober.judgePlugins(ctx, enumerator, n.volumes); err != nil {
		return nil, err
	}
	if err := prober.tryBinds(ctx, n.volumes); err != nil {
		return nil, err
	}
	for _, v := range n.volumes {
		v.Replacement = host.findReplacement(ctx, &v.Evidence, v.Verdict)
	}
	if n.volumes, err = i.findCopies(ctx, enumerator, n.volumes, prober); err != nil {
		return nil, err
	}
	if n.copies, err = prober.judgeCopies(ctx, n.volumes); err != nil {
		return nil, err
	}
	n.silent = prober.silent
	enumerator.addSharing(n.volumes)
	return n, i.addRemovalFacts(ctx, enumerator, n.volumes)
}

// Health is a volume with what each step of an inspection has found out about it.
type Health struct {
	Evidence    Evidence
	Verdict     Verdict
	Replacement Replacement
	// Copies are the broken mounts of the same directory, or of one in it: the kubelet's subPath binds, then those in
	// containers, then all others.
	Copies       []*Copy
	Surroundings Surroundings
}

// Surroundings are who else has to do with a broken volume.
type Surroundings struct {
	// ForeignCopies is how many copies belong to others. They are in containers of other pods, also the driver's, in
	// mount namespaces of services of the node, and in those that a workload has made for itself.
	ForeignCopies int `json:"foreignCopies,omitempty"`
	// SharedWith are the other pods that have a mount of the same broken file system, at most maxSharedWith of them,
	// and SharedWithCount is how many there are.
	SharedWith      []fault.Pod `json:"sharedWith,omitempty"`
	SharedWithCount int         `json:"sharedWithCount,omitempty"`
	// DaemonNotes say what is known of the daemon that serves the file system.
	DaemonNotes []string `json:"daemonNotes,omitempty"`
	// Daemon is the first process that serves it; nil: none was found.
	Daemon *fault.Process `json:"daemon,omitempty"`
}

// Broken reports whether the volume has a fault, or a copy of it has one.
func (v *Health) Broken() bool { return v.Verdict.Code != "" || len(v.Copies) > 0 }

// Summary is the survey as all looks give it.
func (s *Survey) Summary() mountstate.Survey {
	sum := mountstate.Survey{Coverage: s.Coverage, Unknown: s.Unknown, Evidence: func() any { return s.Record() }}
	sum.Coverage.Namespace, sum.Coverage.Volumes = s.Namespace, len(s.Volumes)
	for _, v := range s.Broken() {
		sum.Findings = append(sum.Findings, v.Findings()...)
	}
	return sum
}

// addUnknownVolumes notes the volumes of which nothing can be said, but for those that have gone meanwhile.
func addUnknownVolumes(to *mountstate.Unknown, volumes []*Health) {
	for _, v := range volumes {
		if v.Verdict.UnknownReason != "" && v.Evidence.Answer.State != probe.Gone {
			to.AddPlace(mountstate.Place{Pod: v.Evidence.Pod, Volume: v.Evidence.Name, Point: v.Evidence.Point, Reason: v.Verdict.UnknownReason})
		}
	}
}

// unknownPlace is a copy of a volume of which nothing can be said.
func (c *Copy) unknownPlace(of *Health, reason string) mountstate.Place {
	pod := c.Holder.Pod
	if pod.UID == "" {
		pod = of.Evidence.Pod
	}
	return mountstate.Place{Pod: pod, Container: c.Holder.Container, Volume: of.Evidence.Name, Point: c.Mount.Point, Namespace: c.Mount.Namespace.String(), Reason: reason}
}

// maxSharedWith bounds how many pods are listed for each volume.
const maxSharedWith = 100

// addSharing adds to the broken volumes the other pods that have a mount of the same file system.
func (e *enumerator) addSharing(volumes []*Health) {
	users := map[device][]fault.Pod{} // the pods that have a mount of each broken file system, each once
	for _, v := range volumes {
		if v.Verdict.Code != "" && v.Evidence.Mount.ID != 0 {
			users[deviceOf(v.Evidence.Mount.Mount)] = nil
		}
	}
	for point, m := range e.host.visibleMounts {
		place, ok := e.host.node.ParseVolume(point)
		_, broken := users[deviceOf(m)]
		if !ok || !broken {
			continue
		}
		if pod := e.faultPod(place.PodUID); !slices.Contains(users[deviceOf(m)], pod) {
			users[deviceOf(m)] = append(users[deviceOf(m)], pod)
		}
	}
	for _, pods := range users {
		slices.SortFunc(pods, func(a, b fault.Pod) int { return cmp.Compare(a.UID, b.UID) })
	}
	for _, health := range volumes {
		if health.Verdict.Code == "" || health.Evidence.stagedLocation().OnNodeDisk { // all pods share the node's own disk
			continue
		}
		for _, pod := range users[deviceOf(health.Evidence.Mount.Mount)] {
			if pod.UID == health.Evidence.Pod.UID {
				continue
			}
			if health.Surroundings.SharedWithCount++; len(health.Surroundings.SharedWith) < maxSharedWith {
				health.Surroundings.SharedWith = append(health.Surroundings.SharedWith, pod)
			}
		}
	}
}
