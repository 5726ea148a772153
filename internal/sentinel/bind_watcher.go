// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"golang.org/x/time/rate"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/subpath"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/share"
)

// Bounds of the work.
const (
	// maxBindEvents is how many events can have a bind inspected between two ticks. A process that may change the
	// attributes of a file may do so in a loop.
	maxBindEvents = 8
	// maxPolledBinds is how many binds without a watch are inspected at one tick.
	maxPolledBinds = 256
	// refusalInterval is how often the guard is asked for the repair of one bind. A tenant may have hundreds whose budget is used up.
	refusalInterval = 4 * time.Second
)

// bindMemory is what the watcher of one kubelet leaves to the watcher of the next.
type bindMemory struct {
	// notified are the mounts whose faults the observer knows, by location: another mount there is another event. A list of mounts
	// may show a mount only after its fault was found, so a new entry of the list does not end the fault: only a repair, or an
	// inspection, or no mount there.
	notified       map[fault.Key]mount.ID
	repairLimiters repairLimiters
	// decisions receives when the guard may decide otherwise than before.
	decisions <-chan struct{}
	begun     []Repair // by an earlier process; their ends are not known
}

// bindWatcher watches the subPath binds of one kubelet. Only one goroutine uses it.
type bindWatcher struct {
	sentinel *Sentinel
	memory   *bindMemory
	binds    bindQueue
	node     *kubelet.Node
	mounts   mountList
	sources  *sourceWatcher
	asksOnly bool

	notifications []notification // that the observer does not know yet, the oldest first
	namespace     uint64         // the inode number of the kubelet's mount namespace
	habits        kubelet.Habits
	asked         subpath.Answers // about the binds of a batch
	locked        bool            // whether no other program of the node repairs meanwhile
	// nextFullScan is when all binds are inspected again.
	nextFullScan time.Time
	// statusChanged is set if the status may have changed since the last report, which was made at reported.
	statusChanged bool
	reported      time.Time
	table         recentTable
}

// newBindWatcher watches the binds of a kubelet. asksOnly: only those whose file systems are asked.
func newBindWatcher(s *Sentinel, node *kubelet.Node, memory *bindMemory, asksOnly bool) (*bindWatcher, error) {
	inotify, err := sys.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("make inotify instance: %w", err)
	}
	sources := &sourceWatcher{
		inotify: inotify, events: make(chan []sys.Event, bufferedReads), stop: make(chan struct{}),
		subscriptions: map[int][]subscription{}, watches: map[*bind][]int{},
		room: share.Room{Places: watchedBinds(cmp.Or(s.watches, maxUserWatches()))}, owners: map[*bind]share.Owner{},
	}
	go sources.readEvents()
	return &bindWatcher{
		sentinel: s, memory: memory, binds: newBindQueue(s.Pods), node: node, sources: sources,
		habits: node.Habits(), asksOnly: asksOnly,
	}, nil
}

// close releases the watches. It reports the repairs that wait for their turn.
func (w *bindWatcher) close() {
	for _, n := range w.notifications {
		if n.repair != nil {
			w.sentinel.Observer.Repaired(*n.repair)
		}
	}
	w.sources.close()
	w.mounts.close()
}

// run watches until ctx is done or something fails that concerns the whole node. It takes in the events that wait before each visit to the
// binds, so a bind whose turn it is does not wait until all others are inspected.
func (w *bindWatcher) run(ctx context.Context) error {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	if err := w.onTick(ctx); err != nil {
		return err
	}
	for {
		got, err := w.takeIn(ctx, tick.C)
		if err != nil {
			return err
		}
		if w.binds.queue.Len() > 0 {
			if err := w.inspectBatch(ctx); err != nil {
				return err
			}
			w.statusChanged = true
		}
		idle := !got && w.binds.queue.Len() == 0
		full := len(w.notifications) >= maxNotifications
		late := len(w.notifications) > 0 && time.Since(w.notifications[0].inspectedAt) >= maxNotifyDelay
		if idle || full || late || w.statusChanged && time.Since(w.reported) >= maxNotifyDelay {
			if err := w.notify(ctx); err != nil {
				return err
			}
		}
	}
}

// maxEventReads is how many readings of events are handled before a visit to the binds. bufferedReads of them are made while a visit lasts: the
// last one has all later events.
const maxEventReads, bufferedReads = 32, 16

// takeIn handles all that has happened, and reports whether anything has. It waits only if there is nothing else to do. Events come before
// visits: a bind whose turn it is would otherwise wait for a visit to the binds of others, or for several.
func (w *bindWatcher) takeIn(ctx context.Context, tick <-chan time.Time) (got bool, err error) {
	waits := w.binds.queue.Len() == 0 && len(w.notifications) == 0 && !w.statusChanged
	for range maxEventReads {
		one, err := w.takeOne(ctx, tick, waits)
		if err != nil {
			return false, err
		}
		if !one {
			break
		}
		got, waits = true, false
	}
	return got, nil
}

// takeOne handles one of the things that have happened, and reports whether there was one.
func (w *bindWatcher) takeOne(ctx context.Context, tick <-chan time.Time, waits bool) (got bool, err error) {
	var none chan struct{}
	if !waits {
		none = make(chan struct{})
		close(none)
		select { // select takes one by chance of those that are ready
		case events, ok := <-w.sources.events:
			return true, w.handleEvents(events, ok)
		default:
		}
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case events, ok := <-w.sources.events:
		return true, w.handleEvents(events, ok)
	case <-w.memory.decisions:
		for b := range w.binds.pending {
			b.refusedUntil = time.Time{}
		}
		w.queuePending(time.Now())
		w.statusChanged = true
	case <-tick:
		return true, w.onTick(ctx)
	case <-none: // by chance, but soon one of the others
		return false, nil
	}
	return true, nil
}

// onTick updates the list of binds, and queues those that have to be polled.
func (w *bindWatcher) onTick(ctx context.Context) error {
	if current, err := w.sentinel.Kubelet.Node(ctx); err != nil {
		return err
	} else if current != w.node {
		return errReplaced
	}
	now := time.Now()
	if now.After(w.nextFullScan) {
		w.nextFullScan = now.Add(fullScanInterval)
		w.mounts.reset()
		for _, b := range w.binds.byPoint {
			w.binds.enqueue(b)
		}
		maps.DeleteFunc(w.memory.repairLimiters, func(point string, _ *rate.Limiter) bool { return w.binds.byPoint[point] == nil })
	}
	if err := w.updateBinds(); err != nil {
		return err
	}
	for _, b := range w.binds.byPoint {
		if !b.isAsked() || now.Before(b.askAgainAt) {
			continue
		}
		// A pod that is being deleted does not wait for the next full scan: its bind may be all that keeps it, and its last container may
		// have ended since the last inspection.
		if pod := w.sentinel.Pods.PodByUID(b.sub.PodUID); pod != nil && pod.DeletionTimestamp != nil {
			w.binds.enqueue(b)
		}
	}
	w.queuePending(now)
	w.statusChanged = true // a change of a pod changes what is a fault
	return nil
}

// queuePending queues the pending binds that need an inspection.
func (w *bindWatcher) queuePending(now time.Time) {
	polled := 0
	for b := range w.binds.pending {
		if !b.queued && b.events == 0 && b.inspected && b.code == "" && !b.needsPolling() { // nothing to do until the next event
			delete(w.binds.pending, b)
			continue
		}
		missed := b.events > maxBindEvents
		b.events = 0
		switch {
		case missed:
			w.binds.enqueue(b)
		case !b.inspected:
			if w.sentinel.Pods.PodByUID(b.sub.PodUID) != nil { // the pod is known by now
				w.binds.enqueue(b)
			}
		case b.code != "" && w.affectsContainer(b) && (!w.memory.isNotified(b, b.found.State.ID) || b.fault == nil || w.mayRetry(b, now)):
			w.binds.enqueue(b)
		case b.needsPolling() && polled < maxPolledBinds: // the order of a map is random, so that each bind is polled
			polled++
			w.binds.enqueue(b)
		}
	}
}

// mayRetry reports whether the repair of a bind may be tried again.
func (w *bindWatcher) mayRetry(b *bind, now time.Time) bool {
	return w.sentinel.Guard.Mode(b.code, w.sentinel.Pods.PodByUID(b.sub.PodUID)) == Automatic && !now.Before(b.retry.at) && !now.Before(b.refusedUntil)
}

// updateBinds finds the binds that were added and removed.
func (w *bindWatcher) updateBinds() error {
	mounts, changed, err := w.mounts.list(w.node, w.node.PodsDir())
	if err != nil || !changed {
		return err
	}
	identities := map[string]mountIdentity{}
	for i := range mounts {
		if w.asksOnly && !subpath.IsAsked(mounts[i].FSType) {
			continue
		}
		identity := identities[mounts[i].Point]
		identity.add(&mounts[i])
		identities[mounts[i].Point] = identity
	}
	for point, b := range w.binds.byPoint {
		if _, ok := identities[point]; !ok {
			w.removeBind(point)
			delete(w.memory.notified, b.location())
		}
	}
	for point, identity := range identities {
		b := w.binds.byPoint[point]
		if b != nil && b.identity == identity {
			continue
		}
		same := false // mounts as before; their source may have been deleted
		if b != nil {
			known := b.identity
			known.deleted = identity.deleted
			same = known == identity
		}
		if !same {
			sub, ok := w.node.ParseSubPath(point)
			if !ok {
				continue
			}
			w.removeBind(point)
			b = &bind{sub: sub, point: point}
			w.binds.byPoint[point] = b
		}
		b.identity = identity
		w.binds.enqueue(b)
	}
	return nil
}

func (w *bindWatcher) removeBind(point string) {
	if b := w.binds.byPoint[point]; b != nil {
		w.sources.unsubscribe(b)
		w.binds.drop(b)
	}
}

// handleEvents queues the binds that events concern. ok is false if no more events can come.
func (w *bindWatcher) handleEvents(events []sys.Event, ok bool) error {
	if !ok {
		return w.sources.err
	}
	now := time.Now()
	for _, b := range w.sources.countEvents(events, now) {
		b.noWatchUntil = now.Add(floodPause)
		w.sources.unsubscribe(b)
		w.binds.enqueue(b)
	}
	for _, e := range events {
		if e.Mask&sys.WatchOverflow != 0 {
			w.nextFullScan = time.Time{} // at the next tick and not sooner: an attacker may cause overflows
			continue
		}
		ended := e.Mask&sys.WatchIgnored != 0
		for _, s := range w.sources.subscriptions[e.Watch] {
			if ended {
				s.bind.watched = false
			}
			if !ended && s.name != e.Name {
				continue
			}
			if s.bind.events++; s.bind.events <= maxBindEvents {
				w.binds.enqueue(s.bind)
			}
		}
		if ended {
			delete(w.sources.subscriptions, e.Watch)
		}
	}
	return nil
}

// reportStatus sets the status of the binds.
func (w *bindWatcher) reportStatus() {
	status := Status{Watching: true, Binds: len(w.binds.byPoint), Present: map[fault.Code]int{}}
	var faults []*Fault
	for b := range w.binds.pending { // all other binds are watched and have no fault
		if w.affectsContainer(b) {
			status.Present[b.code]++
			if b.fault != nil {
				// Evidence and details are those of the pod as it is now.
				pod := w.sentinel.Pods.PodByUID(b.sub.PodUID)
				now := b.fault.withState(pod)
				if now != b.fault {
					now.Finding = subpath.Found{SubPath: b.sub, Pod: pod, Bind: b.described}.Finding(w.namespace)
					b.fault = now
				}
				faults = append(faults, now)
			}
		}
		if !b.watched && !b.isAsked() {
			status.Unwatched++
		}
	}
	w.sentinel.setStatus(fault.SearchSubPaths, status)
	w.sentinel.publish(fault.SearchSubPaths, faults)
	w.statusChanged, w.reported = false, time.Now()
}
