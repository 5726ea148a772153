// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"runtime"
	"time"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Listing mounts takes at most one part in cpuShareDivisor of the time, on the average over cpuWindow. A list is made
// once in cpuWindow even if that takes more.
const (
	cpuShareDivisor = 1000
	cpuWindow       = 30 * time.Second
)

// mountList lists the mounts below a directory of the kubelet. Only one goroutine uses it, and closes it.
type mountList struct {
	restBudget
	lister mountns.Lister
}

// list returns the mounts if they have changed since the last call. It reports no change while the budget does not
// allow a new list.
func (l *mountList) list(node *kubelet.Node, below string) (found []mountns.Mount, changed bool, err error) {
	now := time.Now()
	if now.Before(l.notBefore) {
		return nil, false, nil
	}
	ns, err := node.Namespace()
	if err != nil {
		return nil, false, err
	}
	runtime.LockOSThread() // whose CPU time it is
	defer runtime.UnlockOSThread()
	before := sys.ThreadTime()
	found, changed, err = l.lister.List(ns, below)
	l.chargeList(now, cpuShareDivisor*(sys.ThreadTime()-before))
	return found, changed, err
}

// chargeList charges the budget for a list that was made.
func (l *mountList) chargeList(now time.Time, rest time.Duration) {
	l.charge(now, min(rest, 2*cpuWindow-max(0, l.restUntil.Sub(now))), cpuWindow)
}

// reset forgets the last list, and allows a new one at once.
func (l *mountList) reset() {
	l.close()
	l.notBefore = time.Time{}
}

func (l *mountList) close() { l.lister.Close() }

// recentTable is the mount table of a kubelet. It is used in messages only, and reading it takes long, so it may be one
// tick old.
type recentTable struct {
	table  *mountinfo.Table
	readAt time.Time
}

func (t *recentTable) read(ctx context.Context, node *kubelet.Node) (*mountinfo.Table, error) {
	if t.table != nil && time.Since(t.readAt) < tickInterval {
		return t.table, nil
	}
	table, err := node.Mounts(ctx)
	if err == nil {
		t.table, t.readAt = table, time.Now()
	}
	return table, err
}

// restBudget limits the share of time that some work takes: each run of the work has to be followed by a rest.
type restBudget struct {
	notBefore time.Time // when the work may run again
	restUntil time.Time // the end of all rests together
}

// charge adds a rest and sets when the work may run again. While at most credit is left of all rests, it may run again
// after half a tick.
func (b *restBudget) charge(now time.Time, rest, credit time.Duration) {
	if b.restUntil.Before(now) {
		b.restUntil = now
	}
	b.restUntil = b.restUntil.Add(rest)
	b.notBefore = now.Add(tickInterval / 2)
	if owed := b.restUntil.Add(-credit); owed.After(b.notBefore) {
		b.notBefore = owed
	}
}
