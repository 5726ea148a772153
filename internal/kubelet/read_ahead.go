// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"sync"
	"sync/atomic"
	"time"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// readAhead is a mount table that is read before it is needed, and serves one node that is ReadOnce.
type readAhead struct {
	text  func() []byte           // waits for the text of the table; nil if it cannot be read: the next read says why
	table func() *mountinfo.Table // waits for the table
	at    time.Time               // of the begin
	taken atomic.Bool
}

// aheadAge is the age up to which a table that was read ahead serves.
const aheadAge = time.Second

// ReadAhead begins to read the mount table of the kubelet's process, and its program, while the caller does something else: the kernel takes ten
// milliseconds for some thousand mounts. The next node that is ReadOnce takes this table if it is at most a second old, and so does ReadMounts
// before that. It is called before n is used, and not by a caller who changes mounts.
func (n *Node) ReadAhead() {
	pid, a := n.PID, &readAhead{at: time.Now()}
	a.text = sync.OnceValue(func() []byte {
		text, _ := mountns.Read(pid, nil)
		return text
	})
	a.table = sync.OnceValue(func() *mountinfo.Table {
		text := a.text()
		mounts, err := mountinfo.ParseBytes(text)
		if err != nil || text == nil {
			return nil
		}
		table := mountinfo.NewTable(mounts)
		table.On("/") // has the table make its index
		return table
	})
	n.ahead = a
	if pid != 0 {
		go func() { _, _ = n.programMarkers() }() // which are kept; an error comes again
	}
	go a.table()
}

// take returns the table, once; nil if there is none, or none that serves still. a may be nil.
func (a *readAhead) take() *mountinfo.Table {
	if a == nil || a.taken.Swap(true) {
		return nil
	}
	if table := a.table(); time.Since(a.at) <= aheadAge {
		return table
	}
	return nil
}

// unused returns the text of the table as long as it was not taken; nil if there is none, or none that serves still. a may be nil.
func (a *readAhead) unused() []byte {
	if a == nil || a.taken.Load() {
		return nil
	}
	if text := a.text(); time.Since(a.at) <= aheadAge {
		return text
	}
	return nil
}
