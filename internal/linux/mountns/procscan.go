// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"errors"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/sys"
)

// procScan goes through the machine by way of /proc: one mountinfo is read for
// each namespace, not for each process.
type procScan struct {
	buf []byte
}

// reader calls back with the text of one namespace's mount table. The text is
// valid until it returns.
type reader func(ns Namespace, text []byte) error

// spot is a namespace that was found and the way to read it.
type spot struct {
	ns    Namespace
	whole bool // PID sees the namespace from its root, not from a chroot
}

// tour is one pass.
type tour struct {
	scan   *procScan
	look   reader
	spots  map[uint64]*spot // by inode
	order  []*spot
	missed bool         // a namespace could not be read through what was noted
	denied []int        // processes whose namespace may not be known
	known  map[int]bool // IDs of the mounts of every table that was read, where there are such processes
	survey Survey
}

// visit reads the mount table of every namespace that can be found. Where the
// process ends through which one was to be read, others are looked for.
func (p *procScan) visit(look reader) (Survey, error) {
	t := tour{
		scan: p, look: look, spots: map[uint64]*spot{}, known: map[int]bool{},
		survey: Survey{Backend: "procfs"},
	}
	for range 3 {
		t.order, t.missed = nil, false
		if err := t.find(); err != nil {
			return t.survey, err
		}
		// Reading finds namespaces that are bound to files, so the order grows.
		for i := 0; i < len(t.order); i++ {
			t.readSpot(t.order[i])
		}
		for _, pid := range t.denied {
			t.readDenied(pid)
		}
		if t.survey.Denied = len(t.denied); !t.missed {
			break
		}
	}
	return t.survey, nil
}

// find notes the namespaces that have not been read yet.
func (t *tour) find() (err error) {
	if t.denied, err = processes(t.noteTask); err != nil {
		return err
	}
	if _, err = threads(t.noteTask); err != nil {
		return err
	}
	_, err = descriptors(t.noteDescriptor)
	return err
}

// noteTask notes the namespace of a process or thread. Of several, one is
// wanted that is in no chroot: the others see only what lies inside theirs.
func (t *tour) noteTask(inode uint64, h Holder) {
	s := t.spots[inode]
	if s != nil && s.whole {
		return
	}
	root, err := sys.ReadlinkProc(h.root())
	if err != nil {
		return
	}
	if s == nil {
		s = t.note(Namespace{Inode: inode})
	}
	if s.whole = root == "/"; s.whole || s.ns.PID == 0 {
		s.ns.PID = h.PID
		if h.Kind == Thread {
			s.ns.PID = h.Number // /proc knows threads by their own number, too
		}
	}
}

func (t *tour) noteDescriptor(inode uint64, h Holder) {
	if t.spots[inode] == nil {
		t.note(Namespace{Inode: inode, link: h.path()})
	}
}

func (t *tour) note(ns Namespace) *spot {
	s := &spot{ns: ns}
	t.spots[ns.Inode] = s
	t.order = append(t.order, s)
	return s
}

// readSpot reads a namespace through its representative; where that is in a
// chroot, or where there is none, from inside.
func (t *tour) readSpot(s *spot) {
	var (
		text []byte
		err  error
	)
	if s.whole {
		text, err = Read(s.ns.PID, t.scan.buf)
	} else {
		err = s.ns.Do(func() (err error) {
			text, err = Read(0, t.scan.buf)
			return err
		})
		if err != nil && s.ns.PID != 0 && !gone(err) {
			t.survey.Partial++ // what lies inside the chroot, at least
			text, err = Read(s.ns.PID, t.scan.buf)
		}
	}
	if ended(err) || (err == nil && len(text) == 0) {
		delete(t.spots, s.ns.Inode)
		t.missed = true
		return
	}
	t.take(s.ns, text, err)
}

// ended tells whether a namespace could not be read because what it was to be
// read through is no more.
func ended(err error) bool {
	return gone(err) || errors.Is(err, ErrChanged) || errors.Is(err, sys.EINVAL)
}

// readDenied reads the table of a process whose namespace it may not know. Any
// mount in the table tells whether the namespace was read already: no two share
// one. The process may be in another root directory than the one that was read
// through, so that the two tables begin with different mounts.
func (t *tour) readDenied(pid int) {
	head, err := sys.ReadProcHead(strconv.Itoa(pid)+"/mountinfo", t.scan.buf)
	if err != nil || len(head) == 0 || t.knows(head) {
		return // gone, or known
	}
	text, err := Read(pid, t.scan.buf)
	if !ended(err) && len(text) > 0 && !t.knows(text) {
		t.take(Namespace{PID: pid}, text, err)
	}
}

// knows tells whether a mount of the table, of which the end may be missing, is
// in one that was read.
func (t *tour) knows(text []byte) bool {
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		if t.known[firstID(line)] {
			return true
		}
	}
	return false
}

// take hands on a table that was read, and notes what it leads to. A table that
// cannot be read, or not understood, must not keep us from all the others.
func (t *tour) take(ns Namespace, text []byte, err error) {
	if err == nil {
		t.scan.buf = text
		if len(t.denied) > 0 {
			for line := range bytes.Lines(text) {
				t.known[firstID(line)] = true
			}
		}
		t.survey.Namespaces++
		t.survey.Mounts += bytes.Count(text, []byte{'\n'})
		err = t.look(ns, text)
	}
	if err == nil && ns.PID != 0 {
		err = t.noteNamed(ns, text)
	}
	if err != nil {
		t.survey.Partial++
	}
}

// firstID is the number that a line begins with.
func firstID(text []byte) int {
	word, _, _ := bytes.Cut(text, []byte{' '})
	id, _ := strconv.Atoi(string(word))
	return id
}

// noteNamed notes the namespaces that are bound to files in this one. Those
// that are bound only in a namespace without a process stay hidden.
func (t *tour) noteNamed(ns Namespace, text []byte) error {
	major, minor, err := namespaceDevice()
	if err != nil {
		return err
	}
	return mountinfo.EachDevice(text, major, minor, func(line mountinfo.Line) bool {
		m, err := line.Mount()
		if inode, ok := inodeOf(m.Root); err == nil && ok && t.spots[inode] == nil {
			t.note(Namespace{Inode: inode, via: ns.PID, name: m.Point})
		}
		return true
	})
}

func (p *procScan) namespaces() ([]Namespace, Survey, error) {
	var found []Namespace
	survey, err := p.visit(func(ns Namespace, _ []byte) error {
		found = append(found, ns)
		return nil
	})
	return found, survey, err
}

func (p *procScan) deleted() ([]Mount, Survey, error) {
	var found []Mount
	survey, err := p.visit(func(ns Namespace, text []byte) error {
		var bad error
		err := mountinfo.EachDeleted(text, func(line mountinfo.Line) bool {
			m, err := line.Mount()
			bad = err
			found = append(found, Mount{Mount: m, Namespace: ns})
			return err == nil
		})
		return errors.Join(err, bad)
	})
	return found, survey, err
}

func (p *procScan) onDevices(wanted func(major, minor uint32) bool) ([]Mount, Survey, error) {
	var found []Mount
	survey, err := p.visit(func(ns Namespace, text []byte) error {
		return eachMount(text, func(m mountinfo.Mount) {
			if wanted(m.Major, m.Minor) {
				found = append(found, Mount{Mount: m, Namespace: ns})
			}
		})
	})
	return found, survey, err
}

func (p *procScan) fileSystems() ([]FileSystem, Survey, error) {
	at := map[uint64]int{} // device -> index in found
	var found []FileSystem
	survey, err := p.visit(func(ns Namespace, text []byte) error {
		return eachMount(text, func(m mountinfo.Mount) {
			device := deviceNumber(m.Major, m.Minor)
			if i, known := at[device]; known {
				found[i].seenIn(ns)
				return
			}
			at[device] = len(found)
			found = append(found, FileSystem{Mount: Mount{Mount: m, Namespace: ns}, Namespaces: []Namespace{ns}})
		})
	})
	return found, survey, err
}

// eachMount parses a whole table.
func eachMount(text []byte, fn func(mountinfo.Mount)) error {
	mounts, err := mountinfo.ParseBytes(text)
	for _, m := range mounts {
		fn(m)
	}
	return err
}
