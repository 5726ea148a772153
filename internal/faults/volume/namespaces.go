// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"kubediag.org/kubediag/internal/cri"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// otherNamespace is another mount namespace, and who is in it.
type otherNamespace struct {
	ns    mountns.Namespace // with a process, where there is one
	pids  []int
	owner *cri.Owner
	why   string // the owner is not known; for people
	// outside is whether every process that was asked about is in no container that the runtime knows, and untold whether the
	// runtime could not say of one.
	outside, untold bool
	// unseen is whether that is so because its processes may not be looked into.
	unseen bool
	// silent is whether the runtime has not said whether the owner is a container of its own.
	silent bool
	// foreign is whether a workload has made it for itself.
	foreign bool
	// refusal is why nothing is changed in it, although it is the container's own; empty: it may be.
	refusal string
}

const (
	// maxRead bounds how many processes of a namespace are looked at, and maxAsked for how many different cgroups of theirs
	// the runtime is asked.
	maxRead, maxAsked = 64, 16
	// ownerDeadline is how long the runtime may take for one answer, and maxSilent how often it may give none before it is
	// asked no more in one look: what has volumes hang may have the runtime hang, too.
	ownerDeadline, maxSilent = 2 * time.Second, 3
)

// findCopies looks in all other mount namespaces for mounts of the file systems of broken volumes, and for those of a
// kind that may hang which the kubelet's namespace has not, or no longer.
func (l *look) findCopies(ctx context.Context) error {
	if l.Scanner == nil {
		l.incomplete("other mount namespaces were not looked at")
		return nil
	}
	wanted := l.wantedDevices()
	l.unrelatedMounts.forget()
	l.ownerCache.forget()
	candidates, survey, err := l.Scanner.Matching(func(b *mountns.Brief) bool {
		d := device{b.Major, b.Minor}
		return !b.Namespace.Same(l.host) && (wanted[d] != nil || b.Major == 0 && b.MayHang && (l.selection.PodUID != "" || !l.onHost[d]))
	})
	l.survey.Coverage.Namespaces = &survey
	for _, what := range survey.Skipped {
		l.incomplete("not looked at: %s", what)
	}
	if err != nil {
		return err
	}
	candidates = slices.DeleteFunc(candidates, func(m mountns.Mount) bool {
		return !l.mayBeCopy(m, wanted) || l.selection.PodUID == "" && l.unrelatedMounts.has(m.Unique)
	})
	if err := l.enter(ctx, candidates); err != nil {
		return err
	}
	return l.node.Do(ctx, func() error {
		l.recordedFirst(candidates)
		for _, m := range candidates {
			l.attribute(m, wanted)
		}
		return ctx.Err()
	})
}

// unrelatedMounts are mounts of no volume, by the kernel's number that is never used again: a container may well have a file
// system of its own, and who it is need not be asked at every look.
type unrelatedMounts struct {
	mu    sync.Mutex
	until map[uint64]time.Time
}

// maxRemembered bounds what is remembered of mounts, and of containers, that others make: beyond that they are asked for
// again at each look.
const maxRemembered = 16_384

// unrelatedFor is for how long such a mount is passed over.
const unrelatedFor = 10 * time.Minute

func (s *unrelatedMounts) has(unique uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.until[unique]
	return known && unique != 0
}

func (s *unrelatedMounts) add(unique uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[uint64]time.Time{}
	}
	if len(s.until) < maxRemembered {
		s.until[unique] = time.Now().Add(unrelatedFor)
	}
}

// forget forgets those whose time is over.
func (s *unrelatedMounts) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.until, func(_ uint64, until time.Time) bool { return time.Now().After(until) })
}

// ownerCache are containers by the text of their cgroup, which has the ID of the container, and that is never another's. What
// the runtime says of one stays the same for as long as it is there. Each repair looks at all containers of the node that
// have a file system which may hang: where a thousand are made, a runtime would be asked a million times.
type ownerCache struct {
	mu    sync.Mutex
	known map[string]cachedOwner
}

type cachedOwner struct {
	owner cri.Owner
	until time.Time
}

// ownerFor is for how long the runtime is not asked again.
const ownerFor = time.Minute

func (o *ownerCache) get(cgroup string) (cri.Owner, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	then, ok := o.known[cgroup]
	return then.owner, ok && time.Now().Before(then.until)
}

func (o *ownerCache) add(cgroup string, owner cri.Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil {
		o.known = map[string]cachedOwner{}
	}
	if len(o.known) < maxRemembered {
		o.known[cgroup] = cachedOwner{owner, time.Now().Add(ownerFor)}
	}
}

// forget forgets those whose time is over.
func (o *ownerCache) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.known, func(_ string, then cachedOwner) bool { return time.Now().After(then.until) })
}

// wantedDevices lists the file systems whose mounts are looked for, and the volumes for which. Where one pod is looked
// at, its healthy volumes are among them, as a container may have the directory that was there before.
func (l *look) wantedDevices() map[device][]*Volume {
	wanted := map[device][]*Volume{}
	add := func(d device, v *Volume) {
		if !slices.Contains(wanted[d][max(0, len(wanted[d])-1):], v) { // one volume comes after the other
			wanted[d] = append(wanted[d], v)
		}
	}
	for _, v := range l.survey.Volumes {
		for _, bind := range v.Copies {
			add(deviceOf(bind.Mount.Mount), v)
		}
		if v.Mount.ID == 0 || v.Code == "" && l.selection.PodUID == "" {
			continue
		}
		add(deviceOf(v.Mount.Mount), v)
		if v.location.hidden != "" {
			add(v.location.disk, v)
		}
	}
	return wanted
}

// mayBeCopy tells whether a mount of another namespace is of the directory of one of the volumes, or of a file system
// that a volume may have had before: one that no volume has any more, or that is dead for others still.
func (l *look) mayBeCopy(m mountns.Mount, wanted map[device][]*Volume) bool {
	d := deviceOf(m.Mount)
	if (l.selection.PodUID != "" || !l.onHost[d] || wanted[d] != nil) && mountns.MayHang(m.FSType) {
		return true
	}
	for _, v := range wanted[d] {
		if _, ok := v.holds(m.Mount); ok {
			return true
		}
	}
	return false
}

// place is a mount namespace: its number, or a process in it where the number may not be read.
type place struct {
	inode uint64
	pid   int
}

func placeOf(ns mountns.Namespace) place {
	if ns.Inode != 0 {
		return place{inode: ns.Inode}
	}
	return place{pid: ns.PID}
}

// enter finds out who is in the namespaces of the mounts.
func (l *look) enter(ctx context.Context, mounts []mountns.Mount) error {
	var namespaces []mountns.Namespace
	for _, m := range mounts {
		if l.namespaces[placeOf(m.Namespace)] == nil {
			l.namespaces[placeOf(m.Namespace)] = &otherNamespace{ns: m.Namespace, silent: true}
			namespaces = append(namespaces, m.Namespace)
		}
	}
	if len(namespaces) == 0 {
		return nil
	}
	holders, survey, err := l.Scanner.Occupants(namespaces)
	if err != nil {
		return err
	}
	for _, what := range survey.Skipped {
		l.incomplete("not looked at: %s", what)
	}
	sight, err := sys.ProcSight()
	l.blind = err != nil || sight != sys.SeesAll || survey.Denied > 0 && !sys.LooksAnywhere()
	for at, s := range l.namespaces {
		for _, h := range holders[at.inode] {
			s.pids = append(s.pids, h.PID)
		}
		if err := l.identify(ctx, s); err != nil {
			return err
		}
		l.claim(s)
	}
	return nil
}

// identify finds the container that the processes of a namespace are in. Those that have gone elsewhere by now say
// nothing. Where they are in several, some have entered the namespace of another, and whose it is cannot be told.
func (l *look) identify(ctx context.Context, s *otherNamespace) error {
	switch s.why = "no process is in that mount namespace"; {
	case s.ns.Inode == 0:
		s.why, s.unseen = fmt.Sprintf("process %d is in that mount namespace, and may not be looked into", s.ns.PID), true
		return nil
	case l.blind:
		s.why, s.unseen = "no process was seen in that mount namespace, and not all processes may be looked into", true
	}
	asked := map[string]bool{}
	for _, pid := range s.pids[:min(len(s.pids), maxRead)] {
		if err := ctx.Err(); err != nil {
			return err
		}
		cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
		ns, gone := mountns.Of(pid)
		if err != nil || gone != nil || !ns.Same(s.ns) || asked[string(cgroup)] || len(asked) == maxAsked {
			continue
		}
		asked[string(cgroup)] = true
		owner, outside, why := l.owner(ctx, s, string(cgroup))
		s.unseen = false
		switch {
		case owner == nil && s.owner == nil:
			if s.ns = ns; !s.untold {
				s.why, s.outside, s.untold = why, outside, !outside
			}
		case owner == nil:
		case s.owner == nil:
			s.ns, s.owner, s.why, s.outside = ns, owner, "", false
		case s.owner.ContainerID != owner.ContainerID:
			s.why = fmt.Sprintf("processes of containers %q of pod %q and %q of pod %q are in that mount namespace, so whose it is cannot be told",
				s.owner.Container, s.owner.PodUID, owner.Container, owner.PodUID)
			s.owner = nil
			return nil
		}
	}
	return nil
}

// owner asks the runtime. Without an owner, why says why there is none, and outside whether the runtime knows no container
// that the process is in.
func (l *look) owner(ctx context.Context, s *otherNamespace, cgroup string) (owner *cri.Owner, outside bool, why string) {
	const unknown = "whose process is in that mount namespace cannot be told: "
	switch {
	case l.Runtime == nil:
		return nil, false, "no container runtime tells whose process is in that mount namespace"
	case l.silent == maxSilent:
		return nil, false, unknown + "the container runtime does not answer"
	}
	if known, ok := l.ownerCache.get(cgroup); ok {
		s.silent = false
		return &known, false, ""
	}
	asking, cancel := context.WithTimeout(ctx, ownerDeadline)
	defer cancel()
	found, err := l.Runtime.Owner(asking, cgroup)
	switch {
	case err == nil:
		s.silent = false
		l.ownerCache.add(cgroup, found)
		return &found, false, ""
	case errors.Is(err, cri.ErrNotFound):
		s.silent = false
		return nil, true, "the process in that mount namespace is in no container that the runtime knows"
	}
	l.silent++
	return nil, false, unknown + err.Error()
}

// tableOf is the mount table of a namespace as the first of its processes sees it; nil where that cannot be read.
func (l *look) tableOf(s *otherNamespace) *mountinfo.Table {
	if t, known := l.inside[placeOf(s.ns)]; known {
		return t
	}
	t := s.table()
	if t == nil {
		l.incomplete("the mount table of mount namespace %s cannot be read, or is too long", s.ns)
	}
	clear(l.inside) // copies come namespace by namespace, and a table may be large
	l.inside[placeOf(s.ns)] = t
	return t
}

// table reads it by way of any process of the namespace: what a container runs may end at any moment.
func (s *otherNamespace) table() *mountinfo.Table {
	for _, pid := range append([]int{s.ns.PID}, s.pids[:min(len(s.pids), maxRead)]...) {
		if pid == 0 {
			continue
		}
		ns := s.ns
		ns.PID = pid
		if t, err := ns.Table(); err == nil {
			return t
		}
	}
	return nil
}
