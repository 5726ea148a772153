// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"sync"
	"time"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
)

// readAhead is a mount table that is read before it is needed, and serves one node that is ReadOnce.
type readAhead struct {
	read, done chan struct{} // closed when there is the text, and the table
	at         time.Time     // of the begin

	mu    sync.Mutex // of text and table
	text  []byte
	table *mountinfo.Table
}

// aheadAge is the age up to which a table that was read ahead serves.
const aheadAge = time.Second

// ReadAhead begins to read the mount table of the kubelet's process, and its program, while the caller does something else: the kernel takes ten
// milliseconds for some thousand mounts. The next node that is ReadOnce takes this table if it is at most a second old, and so does ReadMounts
// before that. It is called before n is used, and not by a caller who changes mounts.
func (n *Node) ReadAhead() {
	a := &readAhead{read: make(chan struct{}), done: make(chan struct{}), at: time.Now()}
	n.ahead = a
	if n.PID != 0 {
		go func() { _, _ = n.programMarkers() }() // which are kept; an error comes again
	}
	go a.readTable(n.PID)
}

// readTable reads the table of a process. After an error the next read says it.
func (a *readAhead) readTable(pid int) {
	defer close(a.done)
	text, err := mountns.Read(pid, nil)
	if err == nil {
		a.keep(text, nil)
	}
	close(a.read)
	if err != nil {
		return
	}
	mounts, err := mountinfo.ParseBytes(text)
	if err != nil {
		return
	}
	table := mountinfo.NewTable(mounts)
	table.On("/") // has the table make its index
	a.keep(text, table)
}

func (a *readAhead) keep(text []byte, table *mountinfo.Table) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text, a.table = text, table
}

// take returns the table, once; nil if there is none, or none that serves still. a may be nil.
func (a *readAhead) take() *mountinfo.Table {
	if a == nil {
		return nil
	}
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	table := a.table
	a.text, a.table = nil, nil
	if time.Since(a.at) > aheadAge {
		return nil
	}
	return table
}

// unused returns the text of the table as long as it was not taken; nil if there is none, or none that serves still. a may be nil.
func (a *readAhead) unused() []byte {
	if a == nil {
		return nil
	}
	<-a.read
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.at) > aheadAge {
		return nil
	}
	return a.text
}
