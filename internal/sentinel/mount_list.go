// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"runtime"
	"time"

	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys"
)

// No more than one part in thrift of the time is spent on listing mounts, on the average of this long; but however long it
// takes, a list is made that often.
const (
	cpuShareDivisor = 1000
	cpuWindow       = 30 * time.Second
)

// mountList keeps the list of what is mounted below a directory of the kubelet's. One goroutine has it, and closes it.
type mountList struct {
	restBudget
	lister *mountns.Lister
}

func newMountList() *mountList { return &mountList{lister: mountns.NewLister()} }

// list gives the mounts if there are others than at the last call, as far as it may be looked already.
func (l *mountList) list(node *kubelet.Node, below string) (found []mountns.Mount, changed bool, err error) {
	now := time.Now()
	if now.Before(l.notBefore) {
		return nil, false, nil
	}
	ns, err := node.Namespace()
	if err != nil {
		return nil, false, err
	}
	spent := threadTime(func() { found, changed, err = l.lister.List(ns, below) })
	l.chargeList(now, cpuShareDivisor*spent)
	return found, changed, err
}

// chargeList says when the next list may be made.
func (l *mountList) chargeList(now time.Time, rest time.Duration) {
	l.charge(now, min(rest, 2*cpuWindow-max(0, l.restUntil.Sub(now))), cpuWindow)
}

// reset forgets what is known, and may be asked at once.
func (l *mountList) reset() {
	l.close()
	l.notBefore = time.Time{}
}

func (l *mountList) close() { l.lister.Close() }

// threadTime is for how long fn had a processor: others may be given it meanwhile.
func threadTime(fn func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := sys.ThreadTime()
	fn()
	return sys.ThreadTime() - before
}
