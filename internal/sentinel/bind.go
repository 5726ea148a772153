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
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// A repair that fails is tried again after a second, and then after twice as long each time.
const (
	firstRetryDelay = time.Second
	maxRetryDelay   = 5 * time.Minute
)

// bind is one subPath bind, as it was seen last.
type bind struct {
	sub      kubelet.SubPath
	point    string
	identity mountIdentity
	queued   bool
	// events counts the events that concern it since the last beat.
	events int
	// watched is true while events tell of its source.
	watched bool
	// noWatchUntil is until when no watch is set on its source, because there was a flood of events.
	noWatchUntil time.Time

	inspected  bool // found is what was seen
	found      subpath.Bind
	code       fault.Code // of the fault that it has, if a container suffers from it
	fault      *Fault     // with that code, once it was described
	retryAt    time.Time  // no repair before
	retryDelay time.Duration
}

// needsPolling tells whether something may become of the bind that no event tells about: nothing watches its source, or what
// the subPath names may be made anew.
func (b *bind) needsPolling() bool {
	return !b.watched || b.found.Lost || b.found.Verdict == subpath.SourceGone
}

// isIdle tells whether nothing is to be done about the bind, nor said of it, before an event tells of it.
func (b *bind) isIdle() bool { return b.inspected && b.code == "" && !b.needsPolling() }

// mountIdentity tells whether other mounts are at a place than were: it is of the newest there, and of how many there are.
type mountIdentity struct {
	uniqueID    uint64
	mountInfoID int
	root        string
	count       int
	// deleted is the kernel's mark on the root, as far as the list shows it.
	deleted bool
}

// sameMounts tells whether these are the same mounts, whatever has become of their source.
func (i mountIdentity) sameMounts(other mountIdentity) bool {
	i.deleted = other.deleted
	return i == other
}

func (i *mountIdentity) add(m *mountns.Mount) {
	if m.Unique >= i.uniqueID {
		i.uniqueID, i.mountInfoID = m.Unique, m.ID
		i.root, i.deleted = mountinfo.Deleted(m.Root)
	}
	i.count++
}

// notification is what a visit to the kubelet's namespace has brought to light about one bind.
type notification struct {
	bind        *bind
	pod         *corev1.Pod
	found       subpath.Bind
	inspectedAt time.Time
	repaired    bool
	err         error // of the repair
}

// inspectBatch looks at binds in one visit to the kubelet's namespace, and repairs where that is wanted.
func (w *bindWatcher) inspectBatch(ctx context.Context, batch []*bind) error {
	return w.node.Do(ctx, func() error {
		ns, err := mountns.Self()
		if err != nil {
			return err
		}
		w.namespace = ns.Inode
		for _, b := range batch {
			n, err := w.inspectBind(ctx, b)
			if err != nil {
				w.Observer.Trouble(err) // this bind's own
			}
			if n != nil {
				w.notifications = append(w.notifications, *n)
			}
		}
		return nil
	})
}

// notify says what is seen now, and tells the news: of a fault once, and of every repair. That can wait until all that is
// to be done has been, as it takes reading the mount table.
func (w *bindWatcher) notify(ctx context.Context) error {
	if len(w.notifications) > 0 {
		table, err := w.recentTable(ctx)
		if err != nil {
			return err
		}
		for _, n := range w.notifications {
			b := n.bind
			n.found.Describe(w.node, b.sub.PodUID, table)
			f := subpath.Found{SubPath: b.sub, Pod: n.pod, Bind: n.found}.Fault(w.namespace)
			b.fault = &Fault{Finding: f, Since: faultStart(n.found.State), KubeletPID: w.node.PID}
			if previous, ok := w.notified[b.point]; !ok || !previous.Same(n.found.State.ID) {
				w.notified[b.point] = n.found.State.ID
				w.Observer.Found(f, faultAge(n.found.State, n.inspectedAt))
			}
			if n.repaired {
				w.Observer.Repaired(f, n.err)
			}
		}
		w.notifications = w.notifications[:0]
	}
	if w.statusChanged {
		w.reportStatus()
	}
	return nil
}

// recentTable is the mount table, for words alone: reading it takes longer than everything else, so it may be a beat old.
func (w *bindWatcher) recentTable(ctx context.Context) (*mountinfo.Table, error) {
	if w.table != nil && time.Since(w.tableTime) < tickInterval {
		return w.table, nil
	}
	table, err := w.node.Mounts(ctx)
	if err == nil {
		w.table, w.tableTime = table, time.Now()
	}
	return table, err
}

// inspectBind looks at one bind, and heals it. It runs inside the namespace. Only what is to be told is returned.
func (w *bindWatcher) inspectBind(ctx context.Context, b *bind) (*notification, error) {
	pod := w.Pods.PodByUID(b.sub.PodUID)
	if pod == nil {
		return nil, nil
	}
	if !b.watched {
		w.watchSource(b, pod)
	}
	found, mounted, err := subpath.Look(w.node, pod, b.point)
	if err != nil {
		return nil, fmt.Errorf("look at %q: %w", b.point, err)
	}
	b.inspected, b.found, b.code = true, found, ""
	if !mounted || found.Verdict != subpath.Stale && found.Verdict != subpath.SourceGone {
		return nil, nil
	}
	b.code = subpath.Found{SubPath: b.sub, Pod: pod, Bind: found}.Fault(0).Code
	n := &notification{bind: b, pod: pod, found: found, inspectedAt: time.Now()}
	if !w.affectsContainer(b) {
		return nil, nil
	}
	if w.mayUnmount(b, n.inspectedAt) && w.withinRepairLimit(b, n.inspectedAt) {
		n.repaired, n.err = true, subpath.Unmount(ctx, w.node, pod, found.State.ID)
		b.recordRepair(n)
		if n.err == nil && found.Fresh {
			w.watchSource(b, pod) // what is there now may go as well before it is on the list
		}
	}
	return n, nil
}

// affectsContainer tells whether a container will fail for a bind, as far as is known: one that is not started again will not.
func (w *bindWatcher) affectsContainer(b *bind) bool {
	if b.code == "" {
		return false
	}
	pod := w.Pods.PodByUID(b.sub.PodUID)
	if pod == nil {
		return false
	}
	outlook, _ := subpath.OutlookOf(pod, b.sub.Container)
	return outlook != subpath.Over
}

// mayUnmount tells whether a bind is to be unmounted now. Where nothing can take its place, a container that is just being
// started would get the empty file or directory below it: then a moment is waited for at which none is.
func (w *bindWatcher) mayUnmount(b *bind, now time.Time) bool {
	if w.Mode != Automatic || b.found.Verdict != subpath.Stale || now.Before(b.retryAt) {
		return false
	}
	return b.found.Fresh || subpath.Settled(w.Pods.PodByUID(b.sub.PodUID), b.sub.Container)
}

// withinRepairLimit tells whether the place may be repaired once more now.
func (w *bindWatcher) withinRepairLimit(b *bind, now time.Time) bool {
	limiter := w.repairLimiters[b.point]
	if limiter == nil {
		limiter = &repairLimiter{}
		w.repairLimiters[b.point] = limiter
	}
	if limiter.allow(now) {
		return true
	}
	b.retryAt = now.Add(tickInterval)
	return false
}

// recordRepair notes how a repair went. A mount that has gone or changed in the meantime is somebody else's repair.
func (b *bind) recordRepair(n *notification) {
	switch {
	case n.err == nil:
		b.code = ""
	case errors.Is(n.err, mount.ErrNotMounted), errors.Is(n.err, mount.ErrChanged), errors.Is(n.err, subpath.ErrNotStale):
		b.code, n.repaired, n.err = "", false, nil
	default:
		b.retryDelay = min(max(firstRetryDelay, 2*b.retryDelay), maxRetryDelay)
		b.retryAt = n.inspectedAt.Add(b.retryDelay)
	}
}

// wasNotified tells whether the fault has been told of.
func (w *bindWatcher) wasNotified(b *bind) bool {
	previous, ok := w.notified[b.point]
	return ok && previous.Same(b.found.State.ID)
}

// faultStart is when a source went. Zero: the kernel does not say.
func faultStart(st mount.State) time.Time {
	if !st.Gone {
		return time.Time{}
	}
	return st.Changed
}

// faultAge is for how long a source had been gone when that was seen.
func faultAge(st mount.State, seen time.Time) time.Duration {
	since := faultStart(st)
	if since.IsZero() {
		return 0
	}
	return max(0, seen.Sub(since))
}

// watchSource has events tell of the bind's source. It runs inside the namespace, and comes before the look: what changes in
// between is seen twice, not missed.
func (w *bindWatcher) watchSource(b *bind, pod *corev1.Pod) {
	if time.Now().Before(b.noWatchUntil) {
		return
	}
	err := w.addWatches(b, pod)
	b.watched = err == nil
	if err != nil {
		w.sources.unsubscribe(b)
	}
	if errors.Is(err, sys.ENOSPC) && !w.outOfWatches {
		w.outOfWatches = true
		w.Observer.Trouble(fmt.Errorf("watch %q: %w: fs.inotify.max_user_watches is too low; binds without a watch are looked at "+
			"every second", b.point, err))
	}
}

// errNoWatch is for sources that inotify does not know about.
var errNoWatch = errors.New("file system reports no changes")

func (w *bindWatcher) addWatches(b *bind, pod *corev1.Pod) error {
	w.sources.unsubscribe(b)
	st, err := mount.Inspect(b.point)
	if err != nil {
		return err
	}
	if mountns.MayHang(st.FSType) {
		return errNoWatch
	}
	fd, err := mountns.Lookup(0, b.point)
	if err != nil {
		return err
	}
	defer fd.Close()
	if !st.Dir {
		return w.sources.subscribe(b, fd, fileEvents, "")
	}
	if err := w.sources.subscribe(b, fd, directoryEvents, ""); err != nil {
		return err
	}
	parent, name, err := subpath.Parent(w.node, pod, b.point)
	if err != nil {
		return err
	}
	defer parent.Close()
	return w.sources.subscribe(b, parent, parentEvents, name)
}
