// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/calls"
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

// isIdle reports whether the bind needs no action and no report until the next event.
func (b *bind) isIdle() bool { return b.inspected && b.code == "" && !b.needsPolling() }

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

// sameMounts reports whether both are the same mounts. It ignores whether their source was deleted.
func (i mountIdentity) sameMounts(other mountIdentity) bool {
	i.deleted = other.deleted
	return i == other
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
	healthy     bool // the bind has no fault any more: the observer learns of the next one
	repaired    bool
	err         error // of the repair
	endedAt     time.Time
	calls       []calls.Call // of the repair
}

// inspectBatch inspects queued binds in one visit to the kubelet's mount namespace, and repairs them if that is allowed.
func (w *bindWatcher) inspectBatch(ctx context.Context) error {
	batch := w.nextBatch()
	if w.locked = false; w.mayRepairSome(batch) {
		release, ok := w.tryLock() // here, since its file is in our mount namespace
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
		for _, b := range batch {
			if time.Since(begin) >= maxVisit && !b.isAsked() { // the others are asked for this visit alone
				w.enqueue(b)
				continue
			}
			log := &calls.Log{}
			n, err := w.inspectBind(calls.With(ctx, log), b)
			if err != nil {
				w.Observer.Trouble(err) // of this bind only
			}
			if n != nil {
				n.calls, n.endedAt = log.Take(), time.Now()
				w.notifications = append(w.notifications, *n)
			}
		}
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
	w.asked, err = subpath.Ask(ctx, w.Binds.Prober, w.node, w.Pods.PodByUID, points)
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
		begin := time.Now()
		for len(w.notifications) > 0 && time.Since(begin) < maxVisit { // the others go after the next visit
			n := w.notifications[0]
			w.notifications = w.notifications[1:]
			b := n.bind
			if n.healthy {
				delete(w.notified, b.location())
				continue
			}
			n.found.Describe(w.node, b.sub.PodUID, table)
			f := subpath.Found{SubPath: b.sub, Pod: n.pod, Bind: n.found}.Finding(w.namespace)
			b.described = n.found
			b.fault = &Fault{Finding: f, Since: faultStart(n.found.State), KubeletPID: w.node.PID}
			if !w.isNotified(b, n.found.State.ID) {
				w.notified[b.location()] = n.found.State.ID
				w.Observer.Found(f, faultAge(n.found.State, n.inspectedAt))
			}
			if n.repaired {
				w.Observer.Repaired(unmountOf(&n, f))
				if n.err == nil {
					delete(w.notified, b.location())
				}
			}
		}
	}
	if w.statusChanged {
		w.reportStatus()
	}
	return nil
}

// inspectBind inspects one bind and repairs it if that is allowed. It runs inside the kubelet's mount namespace. It
// returns nil if the observer has nothing to learn.
func (w *bindWatcher) inspectBind(ctx context.Context, b *bind) (*notification, error) {
	pod := w.Pods.PodByUID(b.sub.PodUID)
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
	found.AddOutlook(ctx, w.habits, w.Binds.Runtime, pod)
	b.inspected, b.found, b.code, b.askAgainAt = true, found, "", time.Now().Add(retryInterval)
	if !mounted || found.LeftToKubelet() || found.Verdict != subpath.Stale && found.Verdict != subpath.SourceGone {
		if _, known := w.notified[b.location()]; known { // the fault has ended, but a notification of it may still wait
			return &notification{bind: b, healthy: true, inspectedAt: time.Now()}, nil
		}
		return nil, nil
	}
	f := subpath.Found{SubPath: b.sub, Pod: pod, Bind: found}.Finding(w.namespace)
	b.code = f.Code
	notice := &notification{bind: b, pod: pod, found: found, inspectedAt: time.Now()}
	if !w.affectsContainer(b) {
		return nil, nil
	}
	if w.mayUnmount(b, notice.inspectedAt) && w.alone(b, notice.inspectedAt) && w.repairLimiters.allow(b, notice.inspectedAt) {
		if w.Guard.Acquire(ctx, f, pod) {
			w.unmount(ctx, notice, f)
		} else {
			b.refusedUntil = notice.inspectedAt.Add(refusalInterval)
		}
	}
	return notice, nil
}

// unmount repairs a bind. It runs inside the kubelet's mount namespace.
func (w *bindWatcher) unmount(ctx context.Context, n *notification, f fault.Finding) {
	b := n.bind
	n.repaired, n.err = true, subpath.Unmount(ctx, w.node, n.pod, n.found.State.ID, w.asked)
	b.recordRepair(n)
	if n.repaired {
		w.Guard.Ended(f.Key(), f.Pod, n.err)
	}
	if n.err == nil && n.found.SourceReplaced {
		w.watchSource(b, n.pod) // the new source may go before the next list of mounts shows its bind
	}
}

// isGoing reports whether the pod of a bind is being deleted.
func (w *bindWatcher) isGoing(b *bind) bool {
	pod := w.Pods.PodByUID(b.sub.PodUID)
	return pod != nil && pod.DeletionTimestamp != nil
}

// currentFault returns the fault of the bind. Evidence and details are those of the pod as it is now.
func (b *bind) currentFault(pod *corev1.Pod, namespace uint64) *Fault {
	now := b.fault.withState(pod)
	if now != b.fault {
		now.Finding = subpath.Found{SubPath: b.sub, Pod: pod, Bind: b.described}.Finding(namespace)
		b.fault = now
	}
	return now
}

// affectsContainer reports whether the fault of a bind will make a container fail, and is to be reported. A container
// that is not started again is not affected, but its pod may be kept from going.
func (w *bindWatcher) affectsContainer(b *bind) bool {
	if b.code == "" {
		return false
	}
	pod := w.Pods.PodByUID(b.sub.PodUID)
	if pod == nil || w.Guard.Mode(b.code, pod) == Off {
		return false
	}
	outlook, _ := podinfo.RestartStateOf(pod, b.sub.Container)
	return outlook != podinfo.Finished || b.found.KeepsPod && pod.DeletionTimestamp != nil
}

// mayUnmount reports whether the bind may be unmounted now. If its source was not replaced, a container that starts now
// would get the empty file or directory below the bind. In that case the unmount waits until no container starts.
func (w *bindWatcher) mayUnmount(b *bind, now time.Time) bool {
	if w.mode(b) != Automatic || b.found.Verdict != subpath.Stale || now.Before(b.retry.at) {
		return false
	}
	if b.found.KeepsPod {
		return b.found.StillRuns == ""
	}
	return b.found.SourceReplaced || podinfo.NotStarting(w.Pods.PodByUID(b.sub.PodUID), b.sub.Container)
}

// alone reports whether no other program of the node repairs now.
func (w *bindWatcher) alone(b *bind, now time.Time) bool {
	if !w.locked {
		b.retry.at = now.Add(tickInterval)
	}
	return w.locked
}

// recordRepair records the result of a repair. If the mount has gone or changed in the meantime, another process has
// repaired it.
func (b *bind) recordRepair(n *notification) {
	switch {
	case n.err == nil:
		b.code = ""
	case errors.Is(n.err, mount.ErrNotMounted), errors.Is(n.err, mount.ErrChanged), errors.Is(n.err, subpath.ErrNotStale):
		b.code, n.repaired, n.err = "", false, nil
	default:
		b.retry.failed(n.inspectedAt)
	}
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

// faultStart returns when a source was deleted. It is zero if the kernel does not record it.
func faultStart(st mount.State) time.Time {
	if !st.Gone {
		return time.Time{}
	}
	return st.Changed
}

// faultAge returns how long before the inspection the source was deleted.
func faultAge(st mount.State, seen time.Time) time.Duration {
	since := faultStart(st)
	if since.IsZero() {
		return 0
	}
	return max(0, seen.Sub(since))
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
		w.Observer.Trouble(fmt.Errorf("watch %q: %w: fs.inotify.max_user_watches is too low; binds without a watch are looked at "+
			"every second", b.point, err))
	}
}
