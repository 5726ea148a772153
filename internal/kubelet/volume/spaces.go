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

// space is another mount namespace, and who is in it.
type space struct {
	ns    mountns.Namespace // with a process, where there is one
	pids  []int
	owner *cri.Owner
	why   string // the owner is not known
}

// maxAsked bounds of how many processes of a namespace the container is asked for.
const maxAsked = 16

// findCopies looks in all other mount namespaces for mounts of the file systems of broken volumes, and for those of a
// kind that may hang which the kubelet's namespace has not, or no longer.
func (l *look) findCopies(ctx context.Context) error {
	if l.Scanner == nil {
		l.incomplete("other mount namespaces were not looked at")
		return nil
	}
	wanted := l.wantedDevices()
	mounts, survey, err := l.Scanner.OnDevices(func(major, minor uint32) bool {
		d := device{major, minor}
		return wanted[d] != nil || major == 0 && (l.selection.PodUID != "" || !l.onHost[d])
	})
	l.survey.Looked.Spaces = &survey
	if err != nil {
		return err
	}
	var candidates []mountns.Mount
	l.strangers.forget()
	for _, m := range mounts {
		if !m.Namespace.Same(l.host) && l.mayBeCopy(m, wanted) && (l.selection.PodUID != "" || !l.strangers.has(m.Unique)) {
			candidates = append(candidates, m)
		}
	}
	if err := l.enter(ctx, candidates); err != nil {
		return err
	}
	return l.node.Do(ctx, func() error {
		for _, m := range candidates {
			l.attribute(m, wanted)
		}
		return ctx.Err()
	})
}

// strangers are mounts of no volume, by the kernel's number that is never used again: a container may well have a file
// system of its own, and who it is need not be asked at every look.
type strangers struct {
	mu    sync.Mutex
	until map[uint64]time.Time
}

// strangeFor is for how long such a mount is passed over.
const strangeFor = 10 * time.Minute

func (s *strangers) has(unique uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.until[unique]
	return known && unique != 0
}

func (s *strangers) add(unique uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[uint64]time.Time{}
	}
	s.until[unique] = time.Now().Add(strangeFor)
}

// forget forgets those whose time is over.
func (s *strangers) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.until, func(_ uint64, until time.Time) bool { return time.Now().After(until) })
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
		if v.origin.hidden != "" {
			add(v.origin.disk, v)
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

// enter finds out who is in the namespaces of the mounts.
func (l *look) enter(ctx context.Context, mounts []mountns.Mount) error {
	var namespaces []mountns.Namespace
	for _, m := range mounts {
		if l.spaces[m.Namespace.Inode] == nil {
			l.spaces[m.Namespace.Inode] = &space{ns: m.Namespace}
			namespaces = append(namespaces, m.Namespace)
		}
	}
	if len(namespaces) == 0 {
		return nil
	}
	holders, _, err := l.Scanner.Holders(namespaces)
	if err != nil {
		return err
	}
	for inode, s := range l.spaces {
		for _, h := range holders[inode] {
			if h.Kind == mountns.Process || h.Kind == mountns.Thread {
				s.pids = append(s.pids, h.PID)
			}
		}
		if err := l.identify(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// identify finds the container that the processes of a namespace are in. Those that have gone elsewhere by now say
// nothing.
func (l *look) identify(ctx context.Context, s *space) error {
	s.why = "no process is in that mount namespace"
	for _, pid := range s.pids[:min(len(s.pids), maxAsked)] {
		if err := ctx.Err(); err != nil {
			return err
		}
		cgroup, err := sys.ReadProc(strconv.Itoa(pid)+"/cgroup", nil)
		ns, gone := mountns.Of(pid)
		if err != nil || gone != nil || !ns.Same(s.ns) {
			continue
		}
		s.ns = ns
		owner, why := l.owner(ctx, string(cgroup))
		if owner != nil {
			s.owner, s.why = owner, ""
			return nil
		}
		s.why = why
	}
	return nil
}

// owner asks the runtime.
func (l *look) owner(ctx context.Context, cgroup string) (owner *cri.Owner, why string) {
	if l.Runtime == nil {
		return nil, "no container runtime tells whose process is in that mount namespace"
	}
	found, err := l.Runtime.Owner(ctx, cgroup)
	switch {
	case err == nil:
		return &found, ""
	case errors.Is(err, cri.ErrNotFound):
		return nil, "the process in that mount namespace is in no container that the runtime knows"
	}
	return nil, fmt.Sprintf("whose process is in that mount namespace cannot be told: %v", err)
}

// tableOf is the mount table of a namespace as the first of its processes sees it; nil where that cannot be read.
func (l *look) tableOf(s *space) *mountinfo.Table {
	if t, known := l.inside[s.ns.Inode]; known {
		return t
	}
	var t *mountinfo.Table
	if s.ns.PID != 0 {
		t, _ = mountns.Table(s.ns.PID) // it has ended
	}
	l.inside[s.ns.Inode] = t
	return t
}
