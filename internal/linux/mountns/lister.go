// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// ErrGone is returned if a namespace is gone, or the only process through which it can be read.
var ErrGone = errors.New("mount namespace is gone")

// Lister keeps the list of the mounts below a path in one mount namespace. A further call costs little if nothing has
// changed. The zero value knows nothing yet. One goroutine uses it, and closes it. It keeps state because the sentinel calls it every second. Reading the
// table each time would take a hundredth of a core at 2,500 mounts; a call takes 0.02 ms this way.
//
// It keeps a mountinfo open for the namespace of PID 1, or of this process. The kernel reports through it that nothing
// was mounted, unmounted or moved: then there is next to nothing to do. It keeps nothing open of any other namespace,
// as that would keep the namespace alive.
//
// With the kernel's own calls (6.12) it reads only the numbers of the mounts, and remembers each mount as it was first
// seen: Root, Parent, and the peer groups stay so. The number of a mount does not show that it was moved, or that a
// directory on the way to it was renamed. So each call reads some points again, by turns. Without those calls it reads
// the text of mountinfo, which shows everything as it is; if the kernel reports no change, at one call of many.
type Lister struct {
	listing    listing
	ns         Namespace
	below      string
	started    bool // back has given a list of below in ns
	changePoll mountPoll
}

// listing is one way to keep such a list.
type listing interface {
	// list brings the list up to date. quiet: nothing was mounted, unmounted or moved since the last call. After an
	// error it starts from the beginning.
	list(ns Namespace, below string, quiet bool) (mounts []Mount, changed bool, err error)
}

// Close closes the open mountinfo. Used again, the Lister starts from the beginning.
func (l *Lister) Close() {
	l.changePoll.closeTable()
	l.started = false
}

// List is every mount of ns whose Point lies below the path, which is clean and
// absolute (EINVAL), and is not the path itself: hidden ones, too, in the order
// in which the kernel lists them. changed is false if they are the ones of
// the last call. The list is valid until the next call and is not to be changed.
// Another namespace or path than last time starts from the beginning. ErrGone:
// there is no such namespace any more. ErrChanged: its PID is in another by now.
func (l *Lister) List(namespace Namespace, below string) (mounts []Mount, changed bool, err error) {
	if !path.IsAbs(below) || path.Clean(below) != below {
		return nil, false, fmt.Errorf("list mounts below %q: path not clean and absolute: %w", below, sys.EINVAL)
	}
	if !l.started || !l.ns.Same(namespace) || l.below != below {
		l.listing, l.started = chooseListing(namespace), false
	}
	quiet := !l.changePoll.mayHaveChanged(namespace) && l.started
	mounts, changed, err = l.listing.list(namespace, below, quiet)
	if err != nil {
		l.started = false
		return nil, false, fmt.Errorf("list mounts below %q in %s: %w", below, namespace, err)
	}
	changed = changed || !l.started
	l.ns, l.below, l.started = namespace, below, true
	return mounts, changed, nil
}

// chooseListing chooses by the features of the kernel and the rights of this process.
func chooseListing(ns Namespace) listing {
	if ns.ID != 0 && sys.HasNamespaceID.Probe() == nil {
		return &kernelList{}
	}
	return &procList{}
}

// reread is how many calls of a quiet procList return the last list.
const reread = 120

// recheck is how many points of mounts one call reads again. At 2 microseconds each they cost half as much as the
// numbers of 2,500 mounts, and all of those have had their turn after 160 calls. recheckQuiet is the number for a quiet
// call once all have had their turn since the last call that was not quiet: only a directory can have been renamed.
const recheck, recheckQuiet = 16, 2

// kernelList asks with listmount and statmount.
type kernelList struct {
	stat         sys.MountStat
	ids          []uint64 // every mount of the namespace, ascending
	nextIDs      []uint64 // the next buffer of listmount
	nextRecheck  int      // index of the ID that is read again next
	recheckCount int      // how many must be read again, as one may have moved
	mounts       []Mount  // those below the path, ascending by Unique
}

func (k *kernelList) list(ns Namespace, below string, quiet bool) ([]Mount, bool, error) {
	v := listCall{kernelList: k, ns: ns, below: below}
	if !quiet {
		ids, err := sys.ListAllMounts(k.nextIDs, ns.ID)
		if errors.Is(err, sys.ENOENT) {
			return nil, false, fmt.Errorf("%w: %w", ErrGone, err)
		}
		if err != nil {
			return nil, false, err
		}
		k.nextIDs = ids
		if !slices.Equal(k.ids, ids) {
			before := len(k.mounts)
			k.mounts = slices.DeleteFunc(k.mounts, func(m Mount) bool {
				_, found := slices.BinarySearch(ids, m.Unique)
				return !found
			})
			v.changed = len(k.mounts) != before
			old := k.ids
			for _, id := range ids {
				for len(old) > 0 && old[0] < id {
					old = old[1:]
				}
				if len(old) == 0 || old[0] != id {
					v.readMount(id) // it was not there before
				}
			}
			k.ids, k.nextIDs = ids, k.ids
		}
		k.recheckCount = len(k.ids)
	}
	again := recheckQuiet
	if k.recheckCount > 0 {
		again, k.recheckCount = recheck, k.recheckCount-recheck
	}
	for range min(again, len(k.ids)) {
		k.nextRecheck = (k.nextRecheck + 1) % len(k.ids)
		v.readMount(k.ids[k.nextRecheck])
	}
	return k.mounts, v.changed, v.err
}

// listCall is one call of list.
type listCall struct {
	*kernelList
	ns      Namespace
	below   string
	changed bool
	err     error // the first that is not about a mount that went
}

// readMount finds out where a mount is now, and has it in the list or not.
func (c *listCall) readMount(id uint64) {
	at, known := slices.BinarySearchFunc(c.mounts, id, func(m Mount, id uint64) int { return cmp.Compare(m.Unique, id) })
	gone := false
	err := c.stat.Load(sys.MountRef{Namespace: c.ns.ID, Mount: id}, sys.StatmountPoint)
	if err == nil {
		point := c.stat.Point()
		if known && string(point) == c.mounts[at].Point {
			return
		}
		if !known && !strictlyBelow(c.below, point) {
			return
		}
		var m Mount
		switch m, err = loadMount(&c.stat, c.ns, id); {
		case err != nil:
		case !strictlyBelow(c.below, []byte(m.Point)): // not any more
			gone = true
		case known:
			c.mounts[at], c.changed = m, true
		default:
			c.mounts, c.changed = slices.Insert(c.mounts, at, m), true
		}
	}
	if procfs.Ended(err) {
		gone, err = true, nil
	}
	if gone && known {
		c.mounts, c.changed = slices.Delete(c.mounts, at, at+1), true
	}
	if c.err == nil {
		c.err = err
	}
}

// strictlyBelow reports whether path lies below dir and is not dir. Both are
// clean and absolute.
func strictlyBelow(dir string, path []byte) bool {
	if dir == "/" {
		dir = ""
	}
	return len(path) > len(dir)+1 && path[len(dir)] == '/' && string(path[:len(dir)]) == dir
}

// procList reads mountinfo.
type procList struct {
	text       []byte
	lines      []byte // of the mounts below the path, at the last call
	nextLines  []byte
	mounts     []Mount
	quietCalls int // how many calls were answered without reading
}

func (p *procList) list(namespace Namespace, below string, quiet bool) ([]Mount, bool, error) {
	if quiet && p.quietCalls < reread {
		p.quietCalls++
		return p.mounts, false, nil
	}
	p.quietCalls = 0
	text, err := readTableOf(namespace, p.text)
	if err != nil {
		return nil, false, err
	}
	p.text, p.nextLines = text, p.nextLines[:0]
	for line := range mountinfo.Lines(text) {
		found, err := line.Below(below)
		if err != nil {
			return nil, false, err
		}
		if found {
			p.nextLines = append(append(p.nextLines, line...), '\n')
		}
	}
	if bytes.Equal(p.lines, p.nextLines) {
		return p.mounts, false, nil
	}
	found, err := mountinfo.ParseBytes(p.nextLines)
	if err != nil {
		return nil, false, err
	}
	p.lines, p.nextLines, p.mounts = p.nextLines, p.lines, p.mounts[:0]
	for _, m := range found {
		p.mounts = append(p.mounts, Mount{Mount: m, Namespace: namespace})
	}
	return p.mounts, true, nil
}

// readTableOf reads the mount table of ns through its process, or from inside if no process is known.
func readTableOf(ns Namespace, buf []byte) (text []byte, err error) {
	if ns.PID == 0 {
		err = ns.Do(func() (err error) {
			text, err = Read(0, buf)
			return err
		})
	} else if text, err = Read(ns.PID, buf); err == nil {
		// The process may have moved on, or another process may have its number.
		var inode uint64
		inode, err = Holder{Kind: Process, PID: ns.PID}.namespace()
		switch {
		case ns.Inode == 0, errors.Is(err, fs.ErrPermission): // as that of PID 1, at times, which has to be believed
			err = nil
		case err == nil && inode != ns.Inode:
			err = ErrChanged
		}
	}
	switch {
	case err == nil && len(text) == 0: // of a process that ended while it was read
		return nil, ErrGone
	case procfs.Ended(err), errors.Is(err, sys.EINVAL):
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	return text, err
}
