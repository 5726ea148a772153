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
	thrift  = 1000
	average = 30 * time.Second
)

// mounts keeps the list of what is mounted below a directory of the kubelet's. One goroutine has it, and closes it.
type mounts struct {
	pace
	lister *mountns.Lister
}

func newMounts() *mounts { return &mounts{lister: mountns.NewLister()} }

// list gives the mounts if there are others than at the last call, as far as it may be looked already.
func (m *mounts) list(node *kubelet.Node, below string) (found []mountns.Mount, changed bool, err error) {
	now := time.Now()
	if now.Before(m.next) {
		return nil, false, nil
	}
	ns, err := node.Namespace()
	if err != nil {
		return nil, false, err
	}
	spent := threadTime(func() { found, changed, err = m.lister.List(ns, below) })
	m.rest(now, thrift*spent)
	return found, changed, err
}

// rest says when the next list may be made.
func (m *mounts) rest(now time.Time, earned time.Duration) {
	m.after(now, min(earned, 2*average-max(0, m.rests.Sub(now))), average)
}

// anew forgets what is known, and may be asked at once.
func (m *mounts) anew() {
	m.close()
	m.next = time.Time{}
}

func (m *mounts) close() { m.lister.Close() }

// threadTime is for how long fn had a processor: others may be given it meanwhile.
func threadTime(fn func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := sys.ThreadTime()
	fn()
	return sys.ThreadTime() - before
}
