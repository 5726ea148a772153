// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/mountstate"
)

// Volumes inspects and repairs the volumes of the node: a *volume.Inspector.
type Volumes interface {
	Inspect(ctx context.Context, s mountstate.Scope) (*volume.Survey, error)
	Plan(ctx context.Context, v *volume.Health, o volume.PlanOptions) (actions []fault.Action, refusals []string, err error)
	Open(podUIDs ...string) (apply func(ctx context.Context, a fault.Action) (fault.Applied, error))
	Verify(ctx context.Context, actions []fault.Action) (volume.Proof, error)
}

// Connections returns the kernel's state of FUSE connections, without asking their servers: a *fuse.Control.
type Connections interface {
	Connection(minor uint32) (fuse.Connection, error)
}

// Intervals and bounds of the volume watcher.
const (
	// scanInterval is how often all volumes are probed, whatever is known of them. If there are many, the interval is
	// probeInterval for each of them. idleScanInterval is the interval on a node without volumes. A new volume shows by
	// its mount, except a hostPath on a mount of the node.
	scanInterval, probeInterval, idleScanInterval = 30 * time.Second, 300 * time.Millisecond, fullScanInterval
	// minProbeGap is the least time between two scans on the average, for each volume that is probed. One probe takes
	// about a twentieth of it. The duration of a scan does not count, because a scan may wait. Up to probeBurst scans
	// may follow at once, so that a fault that follows another is found without delay.
	minProbeGap, probeBurst = 10 * time.Millisecond, 6
	// faultRescanInterval is the delay before the first rescan while faults are present. It doubles with each scan that
	// changes nothing. No event reports that a container with a dead mount has ended.
	faultRescanInterval = 2 * time.Second
	// maxPolledConnections is how many connections are polled at one tick. The others are polled at the next.
	maxPolledConnections = 256
	// waitingPollLimit is for how many polls requests may wait at a connection before its mounts are probed.
	waitingPollLimit = 3
	// maxConsecutiveScans is how many scans may follow at once because of repairs.
	maxConsecutiveScans = 3
	// minRepairTime is the least time for repairs before the connections are polled again. They get as much time as the
	// scan before them took. Repairs take minutes if a driver's daemon has taken a thousand volumes with it.
	minRepairTime = tickInterval
)

// volumeWatcher watches the volumes of one node that can die under their pods. Package volume decides whether one is
// dead, for the sentinel as for a Diagnosis. The watcher only decides when to scan. It scans at every scanInterval, and
// when mounts of volumes or of file systems that may hang come or go. It also scans when a FUSE connection is dead
// or requests wait at it. Only one goroutine uses it.
type volumeWatcher struct {
	sentinel   *Sentinel
	mounts     mountList
	seed       maphash.Seed
	mountsHash uint64 // of the mounts that are watched

	polled connectionPoller

	rests       restBudget // of scans
	nextScan    time.Time  // when all volumes are scanned without an event
	rescanDelay time.Duration
	scanDue     bool
	// decisions receives when the guard may decide otherwise than before.
	decisions <-chan struct{}

	present      map[fault.Key]fault.Finding
	repairs      repairQueue                  // what is left of the last plan
	scanDuration time.Duration                // of the last scan
	backoffs     map[fault.Key]*repairBackoff // by the location of the repairs
	// probeErr is why the last scan could not probe any volume.
	probeErr error
	begun    []Repair // by an earlier process; their ends are not known
	// lastTrouble is the last error, which is reported once.
	lastTrouble string
}

func newVolumeWatcher(s *Sentinel) *volumeWatcher {
	return &volumeWatcher{
		sentinel: s, seed: maphash.MakeSeed(),
		present: map[fault.Key]fault.Finding{}, backoffs: map[fault.Key]*repairBackoff{}, decisions: s.Guard.Subscribe(),
		begun: s.begunFor(fault.SearchVolumes),
	}
}

// run watches until ctx is done.
func (w *volumeWatcher) run(ctx context.Context) {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	defer w.mounts.close()
	for ctx.Err() == nil {
		w.settleBegun(ctx)
		err := w.onTick(ctx)
		if err = cmp.Or(err, w.probeErr); ctx.Err() == nil {
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != "" && text != w.lastTrouble { // once for as long as it stays the same
				w.sentinel.Observer.Trouble(err)
			}
			w.lastTrouble = text
			w.reportStatus(err == nil)
		}
		select {
		case <-ctx.Done():
		case <-w.decisions:
			w.scanDue = w.scanDue || len(w.present) > 0
		case <-tick.C:
		}
	}
}

// settleBegun finds out how the repairs have ended that an earlier process has begun. If the volumes cannot be looked at, it is called
// again at the next tick.
func (w *volumeWatcher) settleBegun(ctx context.Context) {
	w.begun = slices.DeleteFunc(w.begun, func(r Repair) bool {
		proof, err := w.sentinel.Volumes.Verify(ctx, []fault.Action{r.Action})
		if err != nil {
			return false
		}
		if !proof.Healed {
			err = errors.New(strings.Join(proof.NotHealed, "; "))
		}
		w.sentinel.reportBegun(r, strings.Join(proof.Evidence, "; "), err)
		return true
	})
}

// onTick polls mounts and connections. Then it scans or repairs if that is due.
func (w *volumeWatcher) onTick(ctx context.Context) error {
	node, err := w.sentinel.Kubelet.Node(ctx)
	if err != nil {
		return err
	}
	below := node.Root
	if !mountinfo.Within(below, node.PodsDir()) { // a link leads out of the root
		below = "/"
	}
	mounts, changed, err := w.mounts.list(node, below)
	if err != nil {
		return err
	}
	if changed {
		w.recordMounts(mounts)
	}
	if w.sentinel.Connections != nil && w.polled.poll(w.sentinel.Connections) {
		w.scanDue = true
	}
	if w.sentinel.podsStay.Swap(false) {
		w.scanDue = true
	}
	now := time.Now()
	if (w.scanDue || !now.Before(w.nextScan)) && !now.Before(w.rests.notBefore) {
		return w.scan(ctx)
	}
	if w.repairNext(ctx) && w.repairs.empty() {
		return w.scan(ctx)
	}
	return nil
}

// onCSI is in the path of every CSI volume, onVolume in that of every volume that the kubelet keeps.
var (
	onCSI    = "/" + strings.ReplaceAll(kubelet.CSIPlugin, "/", "~") + "/"
	onVolume = "/volumes/"
)

// recordMounts records the mounts that are watched. A scan is due if they have changed.
func (w *volumeWatcher) recordMounts(mounts []mountns.Mount) {
	var h maphash.Hash
	h.SetSeed(w.seed)
	var connections []uint32
	for i := range mounts {
		m := &mounts[i]
		// Watched is a mount that may hang, or that may be of a volume which a scan judges.
		if !mountns.MayHang(m.FSType) && !strings.Contains(m.Point, onCSI) &&
			!(mountns.OnDisk(m.Major, m.FSType) && strings.Contains(m.Point, onVolume)) {
			continue
		}
		maphash.WriteComparable(&h, [2]uint64{m.Unique, uint64(m.ID)})
		_, _ = h.WriteString(m.Point)
		if strings.HasPrefix(m.FSType, "fuse") && m.Major == 0 {
			connections = append(connections, m.Minor)
		}
	}
	w.polled.set(connections)
	if hash := h.Sum64(); hash != w.mountsHash {
		w.mountsHash, w.scanDue = hash, true
	}
}

// scan probes all volumes, notifies the observer of new faults, and starts the repairs.
func (w *volumeWatcher) scan(ctx context.Context) error {
	for range maxConsecutiveScans {
		w.sentinel.heartbeat()
		w.scanDue = false
		w.repairs.plan(nil)
		survey, err := w.sentinel.Volumes.Inspect(ctx, mountstate.Scope{})
		now, asked := time.Now(), 0
		if err == nil {
			asked, w.scanDuration = survey.Coverage.Asked, survey.Coverage.Took
		}
		rest := time.Duration(asked) * minProbeGap
		w.rests.charge(now, rest, probeBurst*rest) // credit for probeBurst scans in a row
		w.nextScan = now.Add(max(scanInterval, time.Duration(asked)*probeInterval))
		if err != nil { // the faults of the last scan stay until a scan succeeds
			w.rescanDelay = min(max(faultRescanInterval, 2*w.rescanDelay), scanInterval)
			w.nextScan = now.Add(w.rescanDelay)
			return err
		}
		if len(survey.Volumes) == 0 {
			w.nextScan = now.Add(idleScanInterval)
		}
		w.probeErr = probeError(survey.Volumes)
		changed := w.updateFaults(survey.Volumes)
		// While there are faults, or one may be, the next scan follows sooner. The delay grows as long as they do not change.
		if w.rescanDelay = min(2*w.rescanDelay, time.Hour); changed || survey.Silent {
			w.rescanDelay = faultRescanInterval
		}
		if sooner := now.Add(w.rescanDelay); (len(w.present) > 0 || survey.Silent) && sooner.Before(w.nextScan) {
			w.nextScan = sooner
		}
		if w.probeErr == nil {
			var faults []*Fault
			for _, f := range w.present {
				faults = append(faults, &Fault{Finding: f})
			}
			w.sentinel.publish(fault.SearchVolumes, faults)
		}
		w.planRepairs(ctx, survey.Broken())
		if !w.repairNext(ctx) || !w.repairs.empty() {
			break
		}
	}
	return nil
}

// reportStatus sets the status of the volumes.
func (w *volumeWatcher) reportStatus(watching bool) {
	status := Status{Watching: watching, Connections: len(w.polled.order), Present: map[fault.Code]int{}}
	for key := range w.present {
		status.Present[key.Code]++
	}
	w.sentinel.setStatus(fault.SearchVolumes, status)
}
