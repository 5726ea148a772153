// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// Volumes judges the volumes of the node, and mends them: a *volume.Inspector.
type Volumes interface {
	Inspect(ctx context.Context, s volume.Selection) (*volume.Survey, error)
	Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string, err error)
	ApplyAll(ctx context.Context, actions []fault.Action, each func(i int, done fault.Applied, err error) (goOn bool))
}

// Connections tells what the kernel knows about FUSE connections, without asking their servers: a *fuse.Control.
type Connections interface {
	Connection(minor uint32) (fuse.Connection, error)
}

// Intervals of the patrol, and their bounds.
const (
	// scanInterval is how often all volumes are asked whether they answer, whatever is known of them, and how often for each of them
	// where there are many. bare is how often it is looked for volumes where there were none: that one comes is seen by its
	// mount, but for a hostPath on what the node has mounted for itself.
	scanInterval, probeInterval, idleScanInterval = 30 * time.Second, 300 * time.Millisecond, fullScanInterval
	// minProbeGap is how long there is between two looks on the average at least, for each volume that is looked at: to ask one
	// takes about a twentieth of that. How long a look takes says nothing: it may have waited. Some looks may follow one another
	// before that, by half a beat: whoever dies second, or comes back, is not to wait for what has been seen before.
	minProbeGap, probeBurst = 10 * time.Millisecond, 6
	// faultRescanInterval is how soon all is looked at again while there are faults, and twice as long after each time that nothing has
	// changed: no event tells that a container has ended that had a dead mount.
	faultRescanInterval = 2 * time.Second
	// maxPolledConnections is how many connections are felt in one beat: the others have their turn in the next.
	maxPolledConnections = 256
	// waitingPollLimit is for how many turns requests may wait at a connection before its mounts are asked.
	waitingPollLimit = 3
	// maxConsecutiveScans is how often everything is looked at again at once because something was repaired.
	maxConsecutiveScans = 3
	// minRepairTime is how long repairs may follow one another before the connections are felt again, at least: they get as much
	// time as the look before them took. If a driver's daemon has taken a thousand volumes with it, their repairs take minutes.
	minRepairTime = tickInterval
)

// volumeWatcher is the watch over the volumes of one node that can die under their pods. Whether one has is found out where a
// Diagnosis finds it out. The patrol only knows when to look: when mounts of CSI volumes or of file systems that may hang
// come or go, when the kernel says that a FUSE connection is dead or that requests wait at it, and every round. One
// goroutine has it.
type volumeWatcher struct {
	*Sentinel
	mounts     *mountList
	seed       maphash.Seed
	mountsHash uint64 // of the mounts that may hang, and of those of CSI volumes

	connections     map[uint32]*connState // by connection
	connectionOrder []uint32
	connectionIndex int // whose it is in order

	restBudget            // of looks
	nextScan    time.Time // when all is looked at, whatever is known
	rescanDelay time.Duration
	scanDue     bool

	present      map[faultKey]fault.Finding
	repairs      repairQueue   // what is left to do of what was planned when all was looked at
	scanDuration time.Duration // of the last look
	backoffs     map[mountPlace]*repairBackoff
	// probeErr says why no volume could be asked the last time.
	probeErr error
	// lastTrouble is what could not be seen the last time, so that it is told of once.
	lastTrouble string
}

// connState is what the kernel said last about a connection.
type connState struct {
	dead bool
	// waitingPolls counts the turns for which requests have been waiting.
	waitingPolls int
}

// faultKey is a broken mount at its place.
type faultKey struct {
	namespace, uniqueID uint64
	mountInfoID         int
	point               string
	code                fault.Code
}

func faultKeyOf(m *fault.Mount, code fault.Code) faultKey {
	return faultKey{namespace: m.Namespace, uniqueID: m.ID, mountInfoID: m.MountInfoID, point: m.Point, code: code}
}

// mountPlace is a place that is repaired, whichever mount is there: with a driver that comes and goes it is another every time.
type mountPlace struct {
	namespace uint64
	point     string
}

func placeOf(m *fault.Mount) mountPlace { return mountPlace{m.Namespace, m.Point} }

// repairBackoff is how often a repair has failed, and bounds how often one is made.
type repairBackoff struct {
	repairLimiter
	delay                time.Duration
	retryAt, lastAttempt time.Time
}

func newVolumeWatcher(s *Sentinel) *volumeWatcher {
	return &volumeWatcher{
		Sentinel: s, mounts: newMountList(), seed: maphash.MakeSeed(),
		connections: map[uint32]*connState{}, present: map[faultKey]fault.Finding{}, backoffs: map[mountPlace]*repairBackoff{},
	}
}

// run goes on until ctx is done.
func (w *volumeWatcher) run(ctx context.Context) {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	defer w.mounts.close()
	for ctx.Err() == nil {
		err := w.onTick(ctx)
		w.reportTrouble(ctx, cmp.Or(err, w.probeErr))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// reportTrouble tells what cannot be seen, once for as long as it stays the same.
func (w *volumeWatcher) reportTrouble(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.lastTrouble {
		w.Observer.Trouble(err)
	}
	w.lastTrouble = text
	w.reportStatus(err == nil)
}

// onTick does what is to be done in one beat.
func (w *volumeWatcher) onTick(ctx context.Context) error {
	node, err := w.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	below := node.Root
	if !mountinfo.Within(below, node.PodsDir()) { // a link leads out of it
		below = "/"
	}
	mounts, changed, err := w.mounts.list(node, below)
	if err != nil {
		return err
	}
	if changed {
		w.recordMounts(mounts)
	}
	w.pollConnections()
	now := time.Now()
	if due := w.scanDue || !now.Before(w.nextScan); due && !now.Before(w.notBefore) {
		return w.scan(ctx)
	}
	if w.repairNext(ctx) && w.repairs.empty() {
		return w.scan(ctx)
	}
	return nil
}

// onCSI is in the path of every CSI volume.
var onCSI = "/" + strings.ReplaceAll(kubelet.CSI, "/", "~") + "/"

// recordMounts takes in which mounts there are that may hang, or can be found to be another volume's.
func (w *volumeWatcher) recordMounts(mounts []mountns.Mount) {
	var h maphash.Hash
	h.SetSeed(w.seed)
	connections := map[uint32]*connState{}
	for i := range mounts {
		m := &mounts[i]
		if !mountns.MayHang(m.FSType) && !strings.Contains(m.Point, onCSI) {
			continue
		}
		maphash.WriteComparable(&h, [2]uint64{m.Unique, uint64(m.ID)})
		_, _ = h.WriteString(m.Point)
		if strings.HasPrefix(m.FSType, "fuse") && m.Major == 0 {
			connections[m.Minor] = w.connections[m.Minor]
		}
	}
	for minor, state := range connections {
		if state == nil {
			connections[minor] = &connState{}
		}
	}
	w.connections, w.connectionOrder = connections, slices.Sorted(maps.Keys(connections))
	if hash := h.Sum64(); hash != w.mountsHash {
		w.mountsHash, w.scanDue = hash, true
	}
}

// pollConnections asks the kernel about connections, in turn.
func (w *volumeWatcher) pollConnections() {
	if w.Connections == nil {
		return
	}
	for range min(maxPolledConnections, len(w.connectionOrder)) {
		w.connectionIndex = (w.connectionIndex + 1) % len(w.connectionOrder)
		minor := w.connectionOrder[w.connectionIndex]
		c, err := w.Connections.Connection(minor)
		if err == nil && w.connections[minor].update(c) {
			w.scanDue = true
		}
	}
}

// update takes in what the kernel says, and tells whether the connection is to be looked at for it.
func (s *connState) update(c fuse.Connection) (changed bool) {
	changed = c.Dead != s.dead
	s.dead = c.Dead
	if c.Waiting == 0 || c.Dead {
		changed = changed || s.waitingPolls >= waitingPollLimit
		s.waitingPolls = 0
		return changed
	}
	s.waitingPolls++
	return changed || s.waitingPolls == waitingPollLimit
}

// scan asks all volumes, tells what is new, and begins to mend what may be mended.
func (w *volumeWatcher) scan(ctx context.Context) error {
	for range maxConsecutiveScans {
		w.heartbeat()
		w.scanDue = false
		w.repairs.plan(nil)
		survey, err := w.Volumes.Inspect(ctx, volume.Selection{})
		now, asked := time.Now(), 0
		if err == nil {
			asked, w.scanDuration = survey.Coverage.Asked, survey.Coverage.Took
		}
		rest := time.Duration(asked) * minProbeGap
		w.charge(now, rest, probeBurst*rest) // so that some may follow one another
		w.nextScan = now.Add(max(scanInterval, time.Duration(asked)*probeInterval))
		if err != nil {
			return err
		}
		if len(survey.Volumes) == 0 {
			w.nextScan = now.Add(idleScanInterval)
		}
		w.probeErr = probeError(survey.Volumes)
		if w.rescanDelay = min(2*w.rescanDelay, time.Hour); w.updateFaults(survey.Volumes) {
			w.rescanDelay = faultRescanInterval
		}
		if len(w.present) > 0 && now.Add(w.rescanDelay).Before(w.nextScan) {
			w.nextScan = now.Add(w.rescanDelay)
		}
		if w.probeErr == nil {
			w.publish(fromVolumes, faultsOf(w.present))
		}
		if w.Mode == Automatic {
			w.planRepairs(ctx, survey.Broken())
		}
		if !w.repairNext(ctx) || !w.repairs.empty() {
			break
		}
	}
	return nil
}

// planRepairs notes what can be repaired without losing anything. The volumes of a pod that ends are the kubelet's to unmount.
func (w *volumeWatcher) planRepairs(ctx context.Context, broken []*volume.Health) {
	var all []fault.Action
	for _, v := range broken {
		if pod := w.Pods.PodByUID(v.Pod.UID); pod == nil || isEnding(pod) {
			continue
		}
		actions, _, err := w.Volumes.Plan(ctx, v, volume.PlanOptions{})
		if err != nil {
			w.Observer.Trouble(err)
			continue
		}
		all = append(all, actions...)
	}
	w.repairs.plan(all)
}

func isEnding(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// repairNext goes on with what was planned, for a while, and reports whether anything was repaired. A repair that fails ends the
// plan of its pod: where one file system does not answer, the next repairs would fail, or wait, as this one did, so that
// all is looked at first.
func (w *volumeWatcher) repairNext(ctx context.Context) (repaired bool) {
	deadline := time.Now().Add(max(minRepairTime, w.scanDuration))
	for !w.repairs.empty() && ctx.Err() == nil && time.Now().Before(deadline) {
		batch, untried := w.repairs.next(), 0
		var allowed []fault.Action
		for _, a := range batch {
			if w.mayRepair(a) {
				allowed = append(allowed, a)
			}
		}
		if untried = len(allowed); untried == 0 {
			continue
		}
		w.heartbeat()
		w.Volumes.ApplyAll(ctx, allowed, func(i int, applied fault.Applied, err error) bool {
			w.heartbeat()
			untried--
			ok, err := w.recordRepair(allowed[i], applied, err)
			repaired = repaired || ok
			if err != nil {
				w.repairs.dropPod()
				untried = 0
			}
			return err == nil && ctx.Err() == nil && time.Now().Before(deadline)
		})
		w.repairs.putBack(allowed[len(allowed)-untried:])
	}
	return repaired
}

// mayRepair reports whether a repair may be tried now, and counts that it is.
func (w *volumeWatcher) mayRepair(a fault.Action) bool {
	if a.Kind != fault.Replace || !a.Lossless {
		return false
	}
	if _, known := w.present[faultKeyOf(a.Mount, a.Fault)]; !known {
		return false
	}
	place := placeOf(a.Mount)
	backoff := w.backoffs[place]
	if backoff == nil {
		backoff = &repairBackoff{}
		w.backoffs[place] = backoff
	}
	now := time.Now()
	if now.Before(backoff.retryAt) || !backoff.allow(now) {
		w.scanDue = true
		return false
	}
	backoff.lastAttempt = now
	return true
}

// recordRepair notes how a repair went. The error is that of one that was tried and has failed.
func (w *volumeWatcher) recordRepair(a fault.Action, applied fault.Applied, err error) (repaired bool, failed error) {
	refused := errors.Is(err, volume.ErrRefused) // somebody else was faster, or it is not what it was
	if !refused && !applied.Already {
		w.Observer.Repaired(w.present[faultKeyOf(a.Mount, a.Fault)], err)
	}
	backoff := w.backoffs[placeOf(a.Mount)]
	if err == nil {
		backoff.delay = 0
		return true, nil
	}
	backoff.delay = min(max(firstRetryDelay, 2*backoff.delay), maxRetryDelay)
	backoff.retryAt = time.Now().Add(backoff.delay)
	w.scanDue = true
	if refused {
		err = nil
	}
	return false, err
}

// reportStatus says what is seen now.
func (w *volumeWatcher) reportStatus(watching bool) {
	status := Status{Watching: watching, Connections: len(w.connectionOrder), Present: map[fault.Code]int{}}
	for key := range w.present {
		status.Present[key.code]++
	}
	w.Sentinel.setVolumeStatus(status)
}
