// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/podinfo"
)

// bind is a subPath bind as the last inspection found it.
type bind struct {
	sub      kubelet.SubPath
	point    string
	identity mountIdentity
	queued   bool
	// events counts the events since the last tick that concern the bind.
	events int
	// watched is true while inotify reports changes of its source.
	watched bool
	// noWatchUntil is the end of the pause after a flood of events. Until then its source gets no watch.
	noWatchUntil time.Time
	// askAgainAt is when the file system is asked again although no event says so, if the pod is being deleted.
	askAgainAt time.Time

	inspected bool // whether found is set
	found     subpath.Bind
	code      fault.Code   // of its fault, if a container is affected
	fault     *Fault       // with that code; nil until it is described
	described subpath.Bind // the bind that the fault describes
	retry     retry
	// refusedUntil is when the guard is asked again at the latest, after it has refused a repair.
	refusedUntil time.Time
}

// needsPolling reports whether the bind can change without an event: its source has no watch, or the name of the
// subPath may be created again.
func (b *bind) needsPolling() bool {
	return !b.isAsked() && (!b.watched || b.found.SourceMissing || b.found.Verdict == subpath.SourceGone)
}

// isAsked reports whether the file system of the bind is asked: then no event shows a change of its source, and it is
// inspected with all others.
func (b *bind) isAsked() bool { return b.identity.fsType != "" && subpath.IsAsked(b.identity.fsType) }

// mountIdentity identifies the mounts at one place: the newest of them, and how many they are. If it changes, other
// mounts are there.
type mountIdentity struct {
	uniqueID    uint64
	mountInfoID int
	root        string
	count       int
	// deleted is the kernel's mark on the root, as far as the list shows it.
	deleted bool
	fsType  string
}

func (i *mountIdentity) add(m *mountns.Mount) {
	if m.Unique >= i.uniqueID {
		i.uniqueID, i.mountInfoID = m.Unique, m.ID
		i.root, i.deleted = mountinfo.Deleted(m.Root)
		i.fsType = m.FSType
	}
	i.count++
}

// notification is a finding about one bind, or a repair of it, that the observer does not know yet.
type notification struct {
	bind        *bind
	pod         *corev1.Pod
	found       subpath.Bind
	inspectedAt time.Time
	healthy     bool    // the bind has no fault any more: the observer learns of the next one
	repair      *Repair // that is planned, or was tried; nil: there is none
}

// inspectBatch inspects queued binds in one visit to the kubelet's mount namespace, and repairs them if that is allowed.
func (w *bindWatcher) inspectBatch(ctx context.Context) error {
	batch := w.binds.nextBatch()
	w.locked = false
	if slices.ContainsFunc(batch, func(b *bind) bool { // the guard may allow its repair if it is stale
		pod := w.sentinel.Pods.PodByUID(b.sub.PodUID)
		return pod != nil && w.sentinel.Guard.Mode(fault.StaleSubPath, pod) == Automatic
	}) {
		release, ok := w.sentinel.tryLock() // here, since its file is in our mount namespace
		defer release()
		w.locked = ok
	}
	if err := w.askBatch(ctx, batch); err != nil {
		return err
	}
	return w.node.Do(ctx, func() error {
		ns, err := mountns.Self()
		if err != nil {
			return err
		}
		w.namespace = ns.Inode
		begin := time.Now()
		var planned []*notification
		for _, b := range batch {
			if time.Since(begin) >= maxVisit && !b.isAsked() { // the others are asked for this visit alone
				w.binds.enqueue(b)
				continue
			}
			n, err := w.inspectBind(ctx, b)
			if err != nil {
				w.sentinel.Observer.Trouble(err) // of this bind only
			}
			switch {
			case n == nil:
			case n.repair == nil:
				w.notifications = append(w.notifications, *n)
			default:
				planned = append(planned, n)
			}
			if len(planned) == maxProvenTogether {
				w.repairBinds(ctx, planned)
				planned = nil
			}
		}
		w.repairBinds(ctx, planned)
		return nil
	})
}

// askBatch asks the file systems of the binds that only those know about.
func (w *bindWatcher) askBatch(ctx context.Context, batch []*bind) (err error) {
	points := []string{}
	for _, b := range batch {
		if b.isAsked() {
			points = append(points, b.point)
		}
	}
	w.asked, err = subpath.Ask(ctx, w.sentinel.Binds.Prober, w.node, w.sentinel.Pods.PodByUID, points)
	return err
}

// notify notifies the observer of each fault once and of every repair, and then updates the status. It comes after the
// repairs because it reads the mount table.
func (w *bindWatcher) notify(ctx context.Context) error {
	if len(w.notifications) > 0 {
		table, err := w.table.read(ctx, w.node)
		if err != nil {
			return err
		}
		enter := fault.EnterNever // how a person on the node comes into the kubelet's mount namespace, wherever the shell is
		if w.node.InFirstNamespace() {
			enter = fault.EnterFirst
		}
		begin := time.Now()
		for len(w.notifications) > 0 && time.Since(begin) < maxVisit { // the others go after the next visit
			n := w.notifications[0]
			w.notifications = w.notifications[1:]
			b := n.bind
			if n.healthy {
				delete(w.memory.notified, b.location())
				continue
			}
			n.found.Describe(w.node, b.sub.PodUID, table)
			f := subpath.Found{SubPath: b.sub, Pod: n.pod, Bind: n.found}.Finding(w.namespace)
			b.described = n.found
			var since time.Time // when the source was deleted; zero if the kernel does not record it
			if n.found.State.Gone {
				since = n.found.State.Changed
			}
			b.fault = &Fault{Finding: f, Since: since, Enter: enter}
			if !w.memory.isNotified(b, n.found.State.ID) {
				w.memory.notified[b.location()] = n.found.State.ID
				var age time.Duration // at the inspection
				if !since.IsZero() {
					age = max(0, n.inspectedAt.Sub(since))
				}
				w.sentinel.Observer.Found(f, age)
			}
			if n.repair != nil {
				n.repair.Fault = f
				w.sentinel.Observer.Repaired(*n.repair)
				if n.repair.Err == nil {
					delete(w.memory.notified, b.location())
				}
			}
		}
	}
	if w.statusChanged {
		w.reportStatus()
	}
	return nil
}

// inspectBind inspects one bind, and plans its repair if that may be allowed. It runs inside the kubelet's mount namespace. It
// returns nil if the observer has nothing to learn.
func (w *bindWatcher) inspectBind(ctx context.Context, b *bind) (*notification, error) {
	pod := w.sentinel.Pods.PodByUID(b.sub.PodUID)
	if pod == nil {
		return nil, nil
	}
	if !b.watched && !b.isAsked() {
		w.watchSource(b, pod)
	}
	found, mounted, err := subpath.InspectBind(w.node, pod, b.point, w.asked)
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", b.point, err)
	}
	found.AddOutlook(ctx, w.habits, w.sentinel.Binds.Runtime, pod)
	b.inspected, b.found, b.code, b.askAgainAt = true, found, "", time.Now().Add(retryInterval)
	if !mounted || found.LeftToKubelet() || found.Code() == "" {
		if _, known := w.memory.notified[b.location()]; known { // the fault has ended, but a notification of it may still wait
			return &notification{bind: b, healthy: true, inspectedAt: time.Now()}, nil
		}
		return nil, nil
	}
	f := subpath.Found{SubPath: b.sub, Pod: pod, Bind: found}.Finding(w.namespace)
	b.code = f.Code
	notice := &notification{bind: b, pod: pod, found: found, inspectedAt: time.Now()}
	switch {
	case !w.affectsContainer(b):
		return nil, nil
	case found.Verdict != subpath.Stale:
		return notice, nil
	}
	action, refusal := found.Plan(pod, f)
	if refusal != "" || !w.mayRepair(b, pod, notice.inspectedAt) {
		return notice, nil
	}
	notice.repair = &Repair{Fault: f, Action: action, pod: pod}
	return notice, nil
}

// repairBinds has the engine carry out repairs that are planned. It runs inside the kubelet's mount namespace.
func (w *bindWatcher) repairBinds(ctx context.Context, planned []*notification) {
	a := attempt{sentinel: w.sentinel}
	for _, n := range planned {
		a.repairs = append(a.repairs, n.repair)
	}
	a.take = func(i int) bool { return w.memory.repairLimiters.of(planned[i].bind).Allow() }
	a.apply = func(ctx context.Context, i int) (fault.Applied, error) {
		return subpath.Apply(ctx, w.node, planned[i].pod, planned[i].repair.Action, w.asked)
	}
	a.verify = func(_ context.Context, i int) (string, error) {
		n := planned[i]
		if n.found.SourceReplaced { // the new source may go before the next list of mounts shows its bind
			w.watchSource(n.bind, n.pod)
		}
		err := subpath.Verify(w.node, n.pod, n.repair.Action, nil)
		if errors.Is(err, subpath.ErrStaleAgain) { // which is another fault
			w.binds.enqueue(n.bind)
			err = nil
		}
		return bindIsGone, err
	}
	if err := a.run(ctx); err != nil {
		w.sentinel.Observer.Trouble(err)
	}
	for _, n := range planned {
		b, r := n.bind, n.repair
		switch {
		case r.Ended.IsZero(): // the guard has refused it, or it could not be written down
			n.repair, b.refusedUntil = nil, n.inspectedAt.Add(refusalInterval)
		case r.left:
			if n.repair, b.code = nil, ""; r.Err != nil { // another mount is there by now
				w.binds.enqueue(b)
			}
		case r.Err != nil:
			b.retry.failed(n.inspectedAt)
		default:
			b.code = ""
		}
		w.notifications = append(w.notifications, *n)
	}
}

// affectsContainer reports whether the fault of a bind will make a container fail, and is to be reported. A container
// that is not started again is not affected, but its pod may be kept from going.
func (w *bindWatcher) affectsContainer(b *bind) bool {
	if b.code == "" {
		return false
	}
	pod := w.sentinel.Pods.PodByUID(b.sub.PodUID)
	if pod == nil || w.sentinel.Guard.Mode(b.code, pod) == Off {
		return false
	}
	outlook, _ := podinfo.RestartStateOf(pod, b.sub.Container)
	return outlook != podinfo.Finished || b.found.KeepsPod && pod.DeletionTimestamp != nil
}

// mayRepair reports whether a stale bind may be repaired now, and takes nothing from a limit. If its source was not replaced, a
// container that starts now would get the empty file or directory below the bind. In that case the unmount waits until no container
// starts.
func (w *bindWatcher) mayRepair(b *bind, pod *corev1.Pod, now time.Time) bool {
	switch {
	case w.sentinel.Guard.Mode(b.code, pod) != Automatic, now.Before(b.retry.at):
		return false
	case !b.found.KeepsPod && !b.found.SourceReplaced && !podinfo.NotStarting(pod, b.sub.Container):
		return false
	case !w.locked || w.memory.repairLimiters.of(b).TokensAt(now) < 1: // another program repairs, or this place was repaired too often
		b.retry.at = now.Add(tickInterval)
		return false
	}
	return true
}

// location is that of the faults of the bind.
func (b *bind) location() fault.Key {
	return fault.Key{PodUID: b.sub.PodUID, Container: b.sub.Container, Volume: b.sub.Volume, Place: b.point}
}

// isNotified reports whether the observer knows the fault of a mount at the place of a bind. The bind may be another mount by then.
// Without unique ids, the kernel's mark of a deleted root would make another mount of it: the kubelet deletes the old file only
// after it has put the new one in place.
func (m *bindMemory) isNotified(b *bind, id mount.ID) bool {
	previous, ok := m.notified[b.location()]
	previous.Root, _ = mountinfo.Deleted(previous.Root)
	id.Root, _ = mountinfo.Deleted(id.Root)
	return ok && previous.Same(id)
}

// watchSource sets watches on the bind's source. It runs inside the kubelet's mount namespace and before the
// inspection. A change in between is seen twice, and is not missed.
func (w *bindWatcher) watchSource(b *bind, pod *corev1.Pod) {
	if time.Now().Before(b.noWatchUntil) {
		return
	}
	err := w.sources.watch(b, w.node, pod)
	b.watched = err == nil
	if err != nil {
		w.sources.unsubscribe(b)
	}
	if errors.Is(err, sys.ENOSPC) && !w.sources.outOfWatches {
		w.sources.outOfWatches = true
		w.sentinel.Observer.Trouble(fmt.Errorf("watch %q: %w: fs.inotify.max_user_watches is too low; binds without a watch are looked at "+
			"every second", b.point, err))
	}
}
