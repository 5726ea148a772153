// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"bytes"
	"errors"

	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// procScan goes through the machine by way of /proc: one mountinfo is read for
// each namespace, not for each process.
type procScan struct {
	limits scanLimits
	kept   *keptTables // nil: nothing is kept
}

// tableReader calls back with lines of one namespace's mount table: with all of them, or
// again and again where the table is long. The text is valid until it returns.
type tableReader func(ns Namespace, text []byte) error

// nsEntry is a namespace that was found and the way to read it.
type nsEntry struct {
	ns       Namespace
	seesRoot bool // PID sees the namespace from its root, not from a chroot
}

// maxKnownMounts bounds procPass.knownMountIDs. A table too many is read twice.
const maxKnownMounts = 1 << 17

// procPass is one pass.
type procPass struct {
	limits          scanLimits
	buf             []byte // the buffer for tables
	readTable       tableReader
	entries         map[uint64]*nsEntry // by inode
	inPassOrder     []*nsEntry
	longTables      []*nsEntry   // those whose tables are long
	headBytesLeft   int          // how many bytes of beginnings may still be read
	tableBytesLeft  int          // and of long tables
	missedNamespace bool         // a namespace could not be read through its noted process
	deniedPIDs      []int        // processes whose namespace may not be known
	knownMountIDs   map[int]bool // IDs of the mounts of every table that was read, if there are such processes
	survey          Survey
	// The gaps: namespaces beyond the most that are noted, and tables that were not read, or not to their end.
	unnoted, unreadTables, truncatedTables int
	withTooMany                            int // as in unaskedProcesses
}

// readAllTables reads the mount table of every namespace that can be found. If the
// process ends through which one was to be read, it looks for others.
func (p procScan) readAllTables(look tableReader) (Survey, error) {
	if p.kept == nil {
		return p.readNow(look)
	}
	return p.kept.readAll(p.readNow, look)
}

func (p procScan) readNow(look tableReader) (Survey, error) {
	t := procPass{
		limits: p.limits, buf: make([]byte, p.limits.headBytes), headBytesLeft: p.limits.allHeadBytes, tableBytesLeft: p.limits.allTableBytes,
		readTable: look, entries: map[uint64]*nsEntry{}, knownMountIDs: map[int]bool{}, survey: Survey{Backend: "procfs"},
	}
	for range 3 {
		t.inPassOrder, t.longTables, t.missedNamespace = nil, nil, false
		if err := t.findNamespaces(); err != nil {
			return t.survey, err
		}
		// Reading finds namespaces that are bound to files, so both lists grow.
		for short, long := 0, 0; short < len(t.inPassOrder) || long < len(t.longTables); {
			if short < len(t.inPassOrder) {
				t.readEntry(t.inPassOrder[short])
				short++
				continue
			}
			t.readLong(t.longTables[long])
			long++
		}
		for _, pid := range t.deniedPIDs {
			t.readDenied(pid)
		}
		if t.survey.Denied, t.survey.DeniedPIDs = len(t.deniedPIDs), t.deniedPIDs; !t.missedNamespace {
			break
		}
	}
	limits := t.limits
	t.survey.skipDescriptors(t.withTooMany)
	if t.unnoted > 0 {
		t.survey.addSkip("mount namespaces beyond the first %d", limits.namespaces)
	}
	if t.truncatedTables > 0 {
		t.survey.addSkip("the end of the mount tables of %d mount namespaces: at most %d MiB of one are read, and %d MiB of all", t.truncatedTables,
			limits.tableBytes>>20, limits.allTableBytes>>20)
	}
	if t.unreadTables > 0 {
		t.survey.addSkip("the mount tables of %d mount namespaces: at most %d MiB of all are read, and %d MiB of those that are long", t.unreadTables,
			limits.allHeadBytes>>20, limits.allTableBytes>>20)
	}
	return t.survey, nil
}

// findNamespaces notes the namespaces that have not been read yet.
func (t *procPass) findNamespaces() error {
	u, err := findProcesses(true)(t.noteTask)
	if t.deniedPIDs = u.deniedPIDs; err != nil {
		return err
	}
	if _, err = findThreads(true)(t.noteTask); err != nil {
		return err
	}
	u, err = findDescriptors(func(h taskNamespace) {
		if t.entries[h.inode] == nil {
			t.noteNamespace(Namespace{Inode: h.inode, Link: h.procPath()})
		}
	})
	t.withTooMany = u.withTooMany
	return err
}

// noteTask notes the namespace of a process or thread. It prefers a process that is in no chroot: others see only the
// mounts inside their chroot.
func (t *procPass) noteTask(task taskNamespace) {
	entry := t.entries[task.inode]
	if entry != nil && entry.seesRoot {
		return
	}
	if entry == nil {
		entry = t.noteNamespace(Namespace{Inode: task.inode})
	}
	if entry.seesRoot = task.root == "/"; entry.seesRoot || entry.ns.PID == 0 {
		entry.ns.PID = task.PID
		if task.Kind == Thread {
			entry.ns.PID = task.Number // /proc knows threads by their own number, too
		}
	}
}

func (t *procPass) noteNamespace(ns Namespace) *nsEntry {
	entry := &nsEntry{ns: ns}
	if len(t.entries) >= t.limits.namespaces {
		t.unnoted++
		return entry
	}
	t.entries[ns.Inode] = entry
	t.inPassOrder = append(t.inPassOrder, entry)
	return entry
}

// openTable opens the table of a namespace for read, through its process; if that is in a chroot, or unknown, from
// inside.
func (t *procPass) openTable(entry *nsEntry, read func(*sys.FD) error) error {
	if entry.seesRoot {
		return withTable(entry.ns.PID, read)
	}
	began := false
	err := entry.ns.Do(func() error {
		return withTable(0, func(f *sys.FD) error {
			began = true
			return read(f)
		})
	})
	if err != nil && entry.ns.PID != 0 && !began && !procfs.Ended(err) {
		t.survey.Partial++ // at least the mounts inside the chroot
		err = withTable(entry.ns.PID, read)
	}
	return err
}

func withTable(pid int, read func(*sys.FD) error) error {
	f, err := sys.OpenProc(tablePath(pid))
	if err != nil {
		return err
	}
	defer f.Close()
	noteRead(pid)
	return read(f)
}

// readHead reads the beginning of a table.
func (t *procPass) readHead(s *nsEntry) (text []byte, whole bool, err error) {
	err = t.openTable(s, func(f *sys.FD) error {
		n, err := f.Read(t.buf)
		text = t.buf[:n]
		return err
	})
	t.headBytesLeft -= len(text)
	return text, len(text) < len(t.buf), err
}

// readEntry reads the table of a namespace, or finds that it is long.
func (t *procPass) readEntry(entry *nsEntry) {
	if t.headBytesLeft <= 0 {
		t.unreadTables++
		return
	}
	text, whole, err := t.readHead(entry)
	switch {
	case endedMeanwhile(err) || (err == nil && len(text) == 0):
		delete(t.entries, entry.ns.Inode)
		t.missedNamespace = true
	case err == nil && !whole:
		t.longTables = append(t.longTables, entry)
	default:
		t.addTable(entry.ns, text, err)
	}
}

// readLong reads a long table piece by piece.
func (t *procPass) readLong(entry *nsEntry) {
	if t.tableBytesLeft <= 0 {
		t.unreadTables++
		return
	}
	first, left := true, min(t.limits.tableBytes, t.tableBytesLeft)
	t.tableBytesLeft -= left
	err := t.openTable(entry, func(f *sys.FD) error {
		for kept := 0; ; first = false {
			n, err := f.Read(t.buf[kept:])
			text := t.buf[:kept+n]
			end := bytes.LastIndexByte(text, '\n') + 1
			if err != nil || end == 0 {
				return err // the kernel writes no line of such a length
			}
			if first {
				t.survey.Namespaces++
			}
			if err := t.passLines(entry.ns, text[:end]); err != nil {
				return err
			}
			last := kept+n < len(t.buf)
			if kept = copy(t.buf, text[end:]); last {
				return nil
			}
			if left -= n; left <= 0 {
				t.truncatedTables++
				return nil
			}
		}
	})
	switch {
	case err == nil:
		t.tableBytesLeft += max(left, 0)
	case first && endedMeanwhile(err):
		delete(t.entries, entry.ns.Inode)
		t.missedNamespace = true
	default:
		t.survey.Partial++
	}
}

// endedMeanwhile reports whether a namespace could not be read because the process through which it was read has ended.
func endedMeanwhile(err error) bool {
	return procfs.Ended(err) || errors.Is(err, ErrChanged) || errors.Is(err, sys.EINVAL)
}

// readDenied reads the table of a process whose namespace it may not know. Any mount in the table shows whether the
// namespace was read already, as no two namespaces share a mount. The process may have another root directory than the
// process that was read through, so that the two tables begin with different mounts.
func (t *procPass) readDenied(pid int) {
	head, err := sys.ReadProcHead(tablePath(pid), t.buf)
	if err != nil || len(head) == 0 || t.knowsMountOf(head) || t.headBytesLeft <= 0 {
		return // gone, or known
	}
	s := &nsEntry{ns: Namespace{PID: pid}, seesRoot: true}
	switch text, whole, err := t.readHead(s); {
	case endedMeanwhile(err) || len(text) == 0 || t.knowsMountOf(text):
	case err == nil && !whole:
		t.readLong(s)
	default:
		t.addTable(s.ns, text, err)
	}
}

// knowsMountOf reports whether a mount of the table, of which the end may be missing, is in a table that was read.
func (t *procPass) knowsMountOf(text []byte) bool {
	for line := range mountinfo.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) {
		if id, _, _, _, _ := line.Numbers(); t.knownMountIDs[id] {
			return true
		}
	}
	return false
}

// addTable hands on a table that was read. A table that cannot be read, or not understood, must not keep us from all the
// others.
func (t *procPass) addTable(ns Namespace, text []byte, err error) {
	if err == nil {
		t.survey.Namespaces++
		err = t.passLines(ns, text)
	}
	if err != nil {
		t.survey.Partial++
	}
}

// passLines hands on lines of a table, and notes the namespaces that they lead to.
func (t *procPass) passLines(ns Namespace, text []byte) error {
	if len(t.deniedPIDs) > 0 && len(t.knownMountIDs) < maxKnownMounts {
		for line := range mountinfo.Lines(text) {
			id, _, _, _, _ := line.Numbers()
			t.knownMountIDs[id] = true
		}
	}
	t.survey.Mounts += bytes.Count(text, []byte{'\n'})
	if err := t.readTable(ns, text); err != nil || ns.PID == 0 {
		return err
	}
	// Namespaces that are bound to files are found, too, but for those that are bound only in a namespace without a process.
	major, minor, err := namespaceDevice()
	if err != nil {
		return err
	}
	for line := range mountinfo.Lines(text) {
		_, _, lineMajor, lineMinor, ok := line.Numbers()
		if ok && (lineMajor != major || lineMinor != minor) {
			continue
		}
		m, err := line.Mount()
		if !ok {
			return err
		}
		if inode, ok := inodeOf(m.Root); err == nil && ok && t.entries[inode] == nil {
			t.noteNamespace(Namespace{Inode: inode, Via: ns.PID, Name: m.Point})
		}
	}
	return nil
}
