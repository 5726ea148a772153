// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"fmt"
	"slices"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/faults"
	"kubediag.org/kubediag/internal/kubelet"
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
