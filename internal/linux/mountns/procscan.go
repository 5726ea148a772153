// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"errors"
	"strconv"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// procScan goes through the machine by way of /proc: one mountinfo is read for
// each namespace, not for each process.
type procScan struct {
	buf    []byte
	limits limits
}

func newProcScan(l limits) *procScan { return &procScan{limits: l} }

// reader calls back with lines of one namespace's mount table: with all of them, or
// again and again where the table is long. The text is valid until it returns.
type reader func(ns Namespace, text []byte) error

// nsEntry is a namespace that was found and the way to read it.
type nsEntry struct {
	ns    Namespace
	whole bool // PID sees the namespace from its root, not from a chroot
}

// maxKnown bounds tour.known. A table too many is read twice.
const maxKnown = 1 << 17

// procPass is one pass.
type procPass struct {
	scan    *procScan
	look    reader
	entries map[uint64]*nsEntry // by inode
	order   []*nsEntry
	long    []*nsEntry   // those whose tables are long
	left    int          // how many bytes of beginnings may still be read
	rest    int          // and of long tables
	missed  bool         // a namespace could not be read through what was noted
	denied  []int        // processes whose namespace may not be known
	known   map[int]bool // IDs of the mounts of every table that was read, if there are such processes
	survey  Survey
	// Not looked at: namespaces beyond the most that are noted, and tables that
	// were not read, or not to their end.
	unnoted, unread, cut int
	many                 int // as in unasked
}

// visit reads the mount table of every namespace that can be found. If the
// process ends through which one was to be read, it looks for others.
func (p *procScan) visit(look reader) (Survey, error) {
	if p.buf == nil {
		p.buf = make([]byte, p.limits.head)
	}
	t := procPass{
		scan: p, look: look, entries: map[uint64]*nsEntry{}, known: map[int]bool{}, left: p.limits.heads, rest: p.limits.tables,
		survey: Survey{Backend: "procfs"},
	}
	for range 3 {
		t.order, t.long, t.missed = nil, nil, false
		if err := t.find(); err != nil {
			return t.survey, err
		}
		// Reading finds namespaces that are bound to files, so both lists grow.
		for short, long := 0, 0; short < len(t.order) || long < len(t.long); {
			if short < len(t.order) {
				t.readSpot(t.order[short])
				short++
				continue
			}
			t.readLong(t.long[long])
			long++
		}
		for _, pid := range t.denied {
			t.readDenied(pid)
		}
		if t.survey.Denied = len(t.denied); !t.missed {
			break
		}
	}
	t.report()
	return t.survey, nil
}

// report says what was not looked at.
func (t *procPass) report() {
	l := t.scan.limits
	t.survey.skipDescriptors(t.many)
	if t.unnoted > 0 {
		t.survey.skip("mount namespaces beyond the first %d", l.namespaces)
	}
	if t.cut > 0 {
		t.survey.skip("the end of the mount tables of %d mount namespaces: at most %d MiB of one are read, and %d MiB of all", t.cut,
			l.table>>20, l.tables>>20)
	}
	if t.unread > 0 {
		t.survey.skip("the mount tables of %d mount namespaces: at most %d MiB of all are read, and %d MiB of those that are long", t.unread,
			l.heads>>20, l.tables>>20)
	}
}

// find notes the namespaces that have not been read yet.
func (t *procPass) find() error {
	u, err := processes(true)(t.noteTask)
	if t.denied = u.denied; err != nil {
		return err
	}
	if _, err = threads(true)(t.noteTask); err != nil {
		return err
	}
	u, err = descriptors(t.noteDescriptor)
	t.many = u.many
	return err
}

// noteTask notes the namespace of a process or thread. It prefers one
// that is in no chroot: the others see only what lies inside theirs.
func (t *procPass) noteTask(h taskNamespace) {
	s := t.entries[h.inode]
	if s != nil && s.whole {
		return
	}
	if s == nil {
		s = t.note(Namespace{Inode: h.inode})
	}
	if s.whole = h.root == "/"; s.whole || s.ns.PID == 0 {
		s.ns.PID = h.PID
		if h.Kind == Thread {
			s.ns.PID = h.Number // /proc knows threads by their own number, too
		}
	}
}

func (t *procPass) noteDescriptor(h taskNamespace) {
	if t.entries[h.inode] == nil {
		t.note(Namespace{Inode: h.inode, Link: h.path()})
	}
}

func (t *procPass) note(ns Namespace) *nsEntry {
	s := &nsEntry{ns: ns}
	if len(t.entries) >= t.scan.limits.namespaces {
		t.unnoted++
		return s
	}
	t.entries[ns.Inode] = s
	t.order = append(t.order, s)
	return s
}

// open opens the table of a namespace for read, through its representative; where
// that is in a chroot, or where there is none, from inside.
func (t *procPass) open(s *nsEntry, read func(*sys.FD) error) error {
	if s.whole {
		return withTable(s.ns.PID, read)
	}
	began := false
	err := s.ns.Do(func() error {
		return withTable(0, func(f *sys.FD) error {
			began = true
			return read(f)
		})
	})
	if err != nil && s.ns.PID != 0 && !began && !procfs.Ended(err) {
		t.survey.Partial++ // what lies inside the chroot, at least
		err = withTable(s.ns.PID, read)
	}
	return err
}

func withTable(pid int, read func(*sys.FD) error) error {
	f, err := sys.OpenProc(tableOf(pid))
	if err != nil {
		return err
	}
	defer f.Close()
	return read(f)
}

// head reads the beginning of a table.
func (t *procPass) head(s *nsEntry) (text []byte, whole bool, err error) {
	err = t.open(s, func(f *sys.FD) error {
		n, err := f.Read(t.scan.buf)
		text = t.scan.buf[:n]
		return err
	})
	t.left -= len(text)
	return text, len(text) < len(t.scan.buf), err
}

// readSpot reads the table of a namespace, or finds that it is long.
func (t *procPass) readSpot(s *nsEntry) {
	if t.left <= 0 {
		t.unread++
		return
	}
	text, whole, err := t.head(s)
	switch {
	case ended(err) || (err == nil && len(text) == 0):
		delete(t.entries, s.ns.Inode)
		t.missed = true
	case err == nil && !whole:
		t.long = append(t.long, s)
	default:
		t.addTable(s.ns, text, err)
	}
}

// readLong reads a long table piece by piece.
func (t *procPass) readLong(s *nsEntry) {
	if t.rest <= 0 {
		t.unread++
		return
	}
	first, left := true, min(t.scan.limits.table, t.rest)
	t.rest -= left
	err := t.open(s, func(f *sys.FD) error {
		for kept := 0; ; first = false {
			n, err := f.Read(t.scan.buf[kept:])
			text := t.scan.buf[:kept+n]
			end := bytes.LastIndexByte(text, '\n') + 1
			if err != nil || end == 0 {
				return err // of a line of such a length there is none
			}
			if first {
				t.survey.Namespaces++
			}
			if err := t.lines(s.ns, text[:end]); err != nil {
				return err
			}
			last := kept+n < len(t.scan.buf)
			if kept = copy(t.scan.buf, text[end:]); last {
				return nil
			}
			if left -= n; left <= 0 {
				t.cut++
				return nil
			}
		}
	})
	switch {
	case err == nil:
		t.rest += max(left, 0)
	case first && ended(err):
		delete(t.entries, s.ns.Inode)
		t.missed = true
	default:
		t.survey.Partial++
	}
}

// ended reports whether a namespace could not be read because what it was to be
// read through is no more.
func ended(err error) bool {
	return procfs.Ended(err) || errors.Is(err, ErrChanged) || errors.Is(err, sys.EINVAL)
}

// readDenied reads the table of a process whose namespace it may not know. Any
// mount in the table shows whether the namespace was read already: no two share
// one. The process may be in another root directory than the one that was read
// through, so that the two tables begin with different mounts.
func (t *procPass) readDenied(pid int) {
	head, err := sys.ReadProcHead(tableOf(pid), t.scan.buf)
	if err != nil || len(head) == 0 || t.knows(head) || t.left <= 0 {
		return // gone, or known
	}
	s := &nsEntry{ns: Namespace{PID: pid}, whole: true}
	switch text, whole, err := t.head(s); {
	case ended(err) || len(text) == 0 || t.knows(text):
	case err == nil && !whole:
		t.readLong(s)
	default:
		t.addTable(s.ns, text, err)
	}
}

// knows reports whether a mount of the table, of which the end may be missing, is
// in one that was read.
func (t *procPass) knows(text []byte) bool {
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		if t.known[firstID(line)] {
			return true
		}
	}
	return false
}

// addTable hands on a table that was read. One that cannot be read, or not understood,
// must not keep us from all the others.
func (t *procPass) addTable(ns Namespace, text []byte, err error) {
	if err == nil {
		t.survey.Namespaces++
		err = t.lines(ns, text)
	}
	if err != nil {
		t.survey.Partial++
	}
}

// lines hands on lines of a table, and notes what they lead to.
func (t *procPass) lines(ns Namespace, text []byte) error {
	if len(t.denied) > 0 && len(t.known) < maxKnown {
		for line := range bytes.Lines(text) {
			t.known[firstID(line)] = true
		}
	}
	t.survey.Mounts += bytes.Count(text, []byte{'\n'})
	err := t.look(ns, text)
	if err == nil && ns.PID != 0 {
		err = t.noteNamed(ns, text)
	}
	return err
}

// firstID is the number that a line begins with.
func firstID(text []byte) int {
	word, _, _ := bytes.Cut(text, []byte{' '})
	id, _ := strconv.Atoi(string(word))
	return id
}

// noteNamed notes the namespaces that are bound to files in this one. Those
// that are bound only in a namespace without a process stay hidden.
func (t *procPass) noteNamed(ns Namespace, text []byte) error {
	major, minor, err := namespaceDevice()
	if err != nil {
		return err
	}
	return mountinfo.EachDevice(text, major, minor, func(line mountinfo.Line) bool {
		m, err := line.Mount()
		if inode, ok := inodeOf(m.Root); err == nil && ok && t.entries[inode] == nil {
			t.note(Namespace{Inode: inode, Via: ns.PID, Name: m.Point})
		}
		return true
	})
}
