// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/mountstate"
)

const (
	// maxProcessesRead bounds how many processes of a namespace are looked at, and maxCgroupsAsked for how many
	// different cgroups of theirs the runtime is asked.
	maxProcessesRead, maxCgroupsAsked = 64, 16
	// ownerDeadline is how long the runtime may take for one answer. After maxFailures without an answer it is not
	// asked any more in one inspection: the cause that has volumes hang may have the runtime hang, too.
	ownerDeadline, maxFailures = 2 * time.Second, 3
)

// otherNamespace is a mount namespace that is not the kubelet's, and the container it belongs to.
type otherNamespace struct {
	namespace mountns.Namespace // with a process, if there is one
	pids      []int             // of processes in it, and of threads whose process is elsewhere
	cgroups   []string          // of its processes, as /proc/PID/cgroup has them: those about which the runtime was asked
	// owner is nil if the container is not known: ownerReason says why, for people.
	owner       *cri.Owner
	ownerReason string
	// outsideContainers is whether every process that was asked about is in no container that the runtime knows, and
	// undecided whether the runtime could not say of one.
	outsideContainers, undecided bool
	// processesHidden is whether the owner is not known because the namespace's processes may not be looked into.
	processesHidden bool
	// workloadMade is whether a workload has made the namespace for itself.
	workloadMade bool
	// gone is whether it has ended since its mounts were listed, with its last process. It is never said of one whose
	// processes may be hidden.
	gone bool
	// refusal is why nothing is changed in it, although it is the container's own; empty: it may be.
	refusal string

	// These are found once for all mounts of the namespace: a container has many records, and its processes make many mounts.
	records  map[string]cri.Mount // the runtime's records by path in the container; of two at one path the later one, which lies on top
	unplaced func() []unplacedRecord
	// podUID is of the pod of this kubelet whose container has the namespace: the kernel says so by the control group of a process there, and the
	// runtime names no other pod. Empty: it is of no such pod.
	podUID func() string
}

// setOwner notes the container that the namespace belongs to, and the runtime's records of its mounts.
func (o *otherNamespace) setOwner(owner *cri.Owner) {
	o.owner, o.records = owner, make(map[string]cri.Mount, len(owner.Mounts))
	for _, m := range owner.Mounts {
		o.records[path.Clean("/"+m.ContainerPath)] = m
	}
}

// namespaces are the mount namespaces in which an inspection has found mounts that may be copies.
type namespaces struct {
	runtime          Runtime // nil: there is none
	cache            *ownerCache
	kubeletNamespace mountns.Namespace // the kubelet's
	seen             *mountstate.Survey

	byKey map[mountns.Key]*otherNamespace
	// processesMayBeHidden is whether processes may be in them that were not seen.
	processesMayBeHidden bool
	failures             int   // how often the runtime has not answered
	lastFailure          error // why, the last time
	lastTable            cachedTable
}

// cachedTable is the mount table that was read last: copies come namespace by namespace, and a table may be large.
type cachedTable struct {
	key   mountns.Key
	table *mountinfo.Table
	read  bool
}

func (n *namespaces) otherNamespaceOf(ns mountns.Namespace) *otherNamespace {
	return n.byKey[ns.Key()]
}

// findOwners finds out which containers the namespaces of the mounts belong to.
func (n *namespaces) findOwners(ctx context.Context, mounts []mountns.Mount) error {
	n.byKey = map[mountns.Key]*otherNamespace{}
	var list []mountns.Namespace
	for _, m := range mounts {
		if n.otherNamespaceOf(m.Namespace) == nil {
			n.byKey[m.Namespace.Key()] = &otherNamespace{namespace: m.Namespace}
			list = append(list, m.Namespace)
		}
	}
	if len(list) == 0 {
		return nil
	}
	occupants, survey, err := mountns.Occupants(list)
	if err != nil {
		return err
	}
	n.seen.Unknown.AddSkipped(survey.Skipped...)
	owners, err := mountns.Owners(list)
	if err != nil {
		return err
	}
	view, err := sys.ProcVisibility()
	n.processesMayBeHidden = err != nil || view != sys.SeesAll || survey.Denied > 0 && !sys.LooksAnywhere()
	for _, other := range n.byKey {
		for _, h := range occupants[other.namespace.Inode] {
			pid := h.PID
			if h.Kind == mountns.Thread { // its process is in another namespace
				pid = h.Number
			}
			other.pids = append(other.pids, pid)
		}
		if err := n.findOwner(ctx, other); err != nil {
			return err
		}
		n.claimNamespace(other, owners)
	}
	return n.keepLiving()
}

// keepLiving clears gone of every namespace that is there still, although no process is in it.
func (n *namespaces) keepLiving() error {
	gone := maps.Clone(n.byKey)
	maps.DeleteFunc(gone, func(_ mountns.Key, other *otherNamespace) bool { return !other.gone })
	if len(gone) == 0 {
		return nil
	}
	ended, err := mountns.Ended()
	if err != nil {
		return err
	}
	for _, other := range gone {
		other.gone = ended(other.namespace)
	}
	return nil
}

// findOwner finds the container that the processes of a namespace are in. Those that have gone elsewhere by now are
// passed over. If they are in several, some have entered the namespace of another, and the owner is not known.
func (n *namespaces) findOwner(ctx context.Context, other *otherNamespace) error {
	switch other.ownerReason = "no process is in that mount namespace"; {
	case other.namespace.Inode == 0:
		other.ownerReason, other.processesHidden = fmt.Sprintf("process %d is in that mount namespace, and may not be looked into", other.namespace.PID), true
		return nil
	case n.processesMayBeHidden:
		other.ownerReason, other.processesHidden = "no process was seen in that mount namespace, and not all processes may be looked into", true
	}
	other.gone = !other.processesHidden // until one is seen
	asked := map[string]bool{}
	for _, pid := range other.pids[:min(len(other.pids), maxProcessesRead)] {
		if err := ctx.Err(); err != nil {
			return err
		}
		cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
		namespace, gone := mountns.Of(pid)
		if err != nil || gone != nil || !namespace.Same(other.namespace) || asked[string(cgroup)] || len(asked) == maxCgroupsAsked {
			continue
		}
		other.gone = false
		asked[string(cgroup)] = true
		other.cgroups = append(other.cgroups, string(cgroup))
		owner, outside, reason := n.askOwner(ctx, string(cgroup))
		other.processesHidden = false
		switch {
		case owner == nil && other.owner == nil:
			if other.namespace = namespace; !other.undecided {
				other.ownerReason, other.outsideContainers, other.undecided = reason, outside, !outside
			}
		case owner == nil:
		case other.owner == nil:
			other.setOwner(owner)
			other.namespace, other.ownerReason, other.outsideContainers = namespace, "", false
		case other.owner.ContainerID != owner.ContainerID:
			other.ownerReason = fmt.Sprintf("processes of containers %q of pod %q and %q of pod %q are in that mount namespace, so its "+
				"owner is unknown", other.owner.Container, other.owner.PodUID, owner.Container, owner.PodUID)
			other.owner = nil
			return nil
		}
	}
	return nil
}

// askOwner asks the runtime. Without an owner, reason says why there is none, and outside whether the runtime knows no
// container that the process is in.
func (n *namespaces) askOwner(ctx context.Context, cgroup string) (owner *cri.Owner, outside bool, reason string) {
	const unknown = "the owner of that mount namespace is unknown: "
	switch {
	case n.runtime == nil:
		return nil, false, "no container runtime was asked whose process is in that mount namespace"
	case n.failures == maxFailures && len(cri.ContainerIDs(cgroup)) > 0: // without one, the runtime need not be asked
		return nil, false, unknown + n.lastFailure.Error()
	}
	if known, ok := n.cache.get(cgroup); ok {
		return &known, false, ""
	}
	asking, cancel := context.WithTimeout(ctx, ownerDeadline)
	defer cancel()
	found, err := n.runtime.Owner(asking, cgroup)
	switch {
	case err == nil:
		n.cache.add(cgroup, found)
		return &found, false, ""
	case errors.Is(err, cri.ErrNotFound):
		return nil, true, "the process in that mount namespace is in no container that the runtime knows"
	}
	n.failures, n.lastFailure = n.failures+1, err
	return nil, false, unknown + err.Error()
}

// claimNamespace finds out whether mounts may be changed in the namespace. owners are those of all, nil if the kernel cannot name them.
func (n *namespaces) claimNamespace(other *otherNamespace, owners map[uint64]uint64) {
	if other.namespace.Inode == 0 {
		return
	}
	if owners != nil && other.namespace.ID != 0 {
		owner, living := owners[other.namespace.ID]
		if !living {
			other.owner, other.ownerReason = nil, "that mount namespace has ended"
			return
		}
		other.namespace.UserNamespace = owner
	}
	namespace, err := cri.Claim(n.kubeletNamespace, other.namespace, other.owner)
	switch {
	case err == nil:
		other.namespace = namespace
	case errors.Is(err, cri.ErrWorkload):
		other.workloadMade = true
	case errors.Is(err, cri.ErrUserNamespace):
		other.namespace, other.refusal = namespace, err.Error()
	case other.owner != nil:
		other.owner, other.ownerReason = nil, "the owner of that mount namespace is unknown: "+err.Error()
	}
}

// recordedFirst orders mounts: first those that the runtime has made, which are judged if there are more than
// maxCopies.
func (n *namespaces) recordedFirst(mounts []mountns.Mount) {
	recorded := func(m mountns.Mount) int {
		o := n.otherNamespaceOf(m.Namespace)
		if _, ok := o.records[m.Point]; ok && o.owner != nil {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(mounts, func(a, b mountns.Mount) int { return recorded(a) - recorded(b) })
}

// tableOf is the mount table of a namespace as the first of its processes sees it; nil if that cannot be read.
func (n *namespaces) tableOf(o *otherNamespace) *mountinfo.Table {
	if key := o.namespace.Key(); !n.lastTable.read || n.lastTable.key != key {
		n.lastTable = cachedTable{key: key, table: o.mountTable(), read: true}
		if n.lastTable.table == nil {
			n.seen.Unknown.AddGap(fmt.Sprintf("the mount table of mount namespace %s", o.namespace), "it cannot be read, or is too long")
		}
	}
	return n.lastTable.table
}

// mountTable reads it by way of any process of the namespace: those of a container may end at any moment.
func (o *otherNamespace) mountTable() *mountinfo.Table {
	for _, pid := range append([]int{o.namespace.PID}, o.pids[:min(len(o.pids), maxProcessesRead)]...) {
		if pid == 0 {
			continue
		}
		ns := o.namespace
		ns.PID = pid
		if t, err := ns.Table(); err == nil {
			return t
		}
	}
	return nil
}

const (
	// ownerLifetime is for how long the runtime is not asked again about a container.
	ownerLifetime = time.Minute
	// maxOwners bounds how many texts of cgroups are kept, as a container may make its own: the runtime is asked for the
	// others in each inspection.
	maxOwners = 16_384
)

// ownerCache has containers by the text of their cgroup, which has the ID of the container, and that is never
// another's. It is kept from one inspection to the next because each repair inspects all containers of the node that have
// a file system which may hang: for a driver's daemon with 250 pods, a runtime would be asked 62,500 times.
type ownerCache struct {
	mu     sync.Mutex
	began  time.Time // all entries end together
	owners map[string]cri.Owner
}

func (c *ownerCache) get(cgroup string) (owner cri.Owner, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	owner, ok = c.owners[cgroup]
	return owner, ok && time.Since(c.began) < ownerLifetime
}

func (c *ownerCache) add(cgroup string, owner cri.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.began) >= ownerLifetime {
		c.began, c.owners = time.Now(), map[string]cri.Owner{}
	}
	if len(c.owners) < maxOwners {
		c.owners[cgroup] = owner
	}
}
