// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import "sync/atomic"

// readCount counts the reads of one namespace.
type readCount struct {
	inode uint64
	reads atomic.Int64
}

var countedReads atomic.Pointer[readCount]

// CountReads counts how often this process reads the whole mount table of the namespace from now on, as a text or through
// the kernel's calls. reads gives the number; stop ends it. Tests alone use it: the kernel takes long for each read if mounts are
// stacked, and nothing else shows how many there were.
func CountReads(ns Namespace) (reads func() int, stop func()) {
	c := &readCount{inode: ns.Inode}
	countedReads.Store(c)
	return func() int { return int(c.reads.Load()) }, func() { countedReads.CompareAndSwap(c, nil) }
}

// noteRead counts one read of the table of a process' namespace; 0 is the calling thread.
func noteRead(pid int) {
	if countedReads.Load() == nil {
		return
	}
	ns, err := Self()
	if pid != 0 {
		ns, err = Of(pid)
	}
	if err == nil {
		noteReadOf(ns)
	}
}

// noteReadOf counts one read of the table of a namespace.
func noteReadOf(ns Namespace) {
	if c := countedReads.Load(); c != nil && c.inode == ns.Inode {
		c.reads.Add(1)
	}
}

var walks atomic.Int64

// CountWalks counts how often this process goes over all mount namespaces of the machine from now on. Tests alone use it, as CountReads.
func CountWalks() (count func() int) {
	before := walks.Load()
	return func() int { return int(walks.Load() - before) }
}
