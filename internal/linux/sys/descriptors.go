// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Descriptors lists descriptors of processes in one pass over them, also for several goroutines. A process may have a
// million, and share them with others, at 8 bytes each: of every process the first 1,024 are listed, and of larger
// processes 65,536 in all.
type Descriptors struct{ beyondLimit atomic.Int64 }

const maxDescriptors, maxDescriptorsBeyond = 1024, 1 << 16

// DescriptorList holds the descriptors of a process or thread, as they were when it was opened.
type DescriptorList struct {
	dir     *FD
	Numbers []int
	// More is whether there are more than are listed.
	More bool
}

// Open lists the descriptors of a process or thread, by its directory below the process' own /proc. The caller closes the
// list.
func (d *Descriptors) Open(dir string) (*DescriptorList, error) {
	fd, err := openProc(dir+"/fd", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	l := &DescriptorList{dir: fd}
	l.Numbers, l.More, err = fd.listNumbers(maxDescriptors + max(0, maxDescriptorsBeyond-int(d.beyondLimit.Load())))
	if err != nil {
		fd.Close()
		return nil, err
	}
	d.beyondLimit.Add(int64(max(0, len(l.Numbers)-maxDescriptors)))
	return l, nil
}

// Stat is StatProcPath of the file behind a descriptor of the list. As the list is open, the kernel looks up no
// process for it.
func (l *DescriptorList) Stat(number int, mask uint32) (Stat, error) {
	return statx(l.dir.number, strconv.Itoa(number), statxNoSync, mask)
}

// Close gives the list back.
func (l *DescriptorList) Close() { _ = l.dir.Close() }

// Numbers returns the numbers of a list that Open would open, and whether there are more.
func (d *Descriptors) Numbers(dir string) (numbers []int, more bool, err error) {
	l, err := d.Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer l.Close()
	return l.Numbers, l.More, nil
}

// FirstDescriptors lists at most the first 1,024 descriptors of a process, by its directory below the process' own /proc,
// and says whether there are more.
func FirstDescriptors(dir string) (numbers []int, more bool, err error) {
	return procNumbers(dir+"/fd", maxDescriptors)
}
