// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package mountns

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// Kind says in which way a mount namespace is kept alive.
type Kind string

// The kinds, in the order in which Holders looks for them.
const (
	Process    Kind = "process"    // a process, by its main thread, is in it
	Thread     Kind = "thread"     // only another thread of a process is in it
	Descriptor Kind = "descriptor" // a process has it open
	NamedMount Kind = "mount"      // it is bound to a file, as "ip netns" does for networks
)

// Holder keeps a mount namespace alive.
type Holder struct {
	Kind Kind
	// PID is the process; 0 for NamedMount.
	PID int
	// Number is the thread, or the descriptor; 0 otherwise.
	Number int
	// Mount is the mount that binds the namespace to a file, for NamedMount alone; nil otherwise.
	Mount *Mount
}

// maxTasks is how many processes or threads of one namespace are reported, and maxOthers how many other holders. Any
// user can have half a million descriptors of one, in each of his processes.
const (
	maxTasks  = 64
	maxOthers = 16
)

// procPath is where the namespace can be opened, below /proc; empty for NamedMount.
func (h Holder) procPath() string {
	pid, number := strconv.Itoa(h.PID), strconv.Itoa(h.Number)
	switch h.Kind {
	case Process:
		return pid + "/ns/mnt"
	case Thread:
		return pid + "/task/" + number + "/ns/mnt"
	case Descriptor:
		return pid + "/fd/" + number
	}
	return ""
}

// Through returns the namespace as a holder leads to it: by the number of the process or thread that is in it, or by the link of a descriptor.
// A namespace without either is searched for among all namespaces of the machine each time that it is opened.
func (n Namespace) Through(h Holder) Namespace {
	switch {
	case n.PID != 0:
	case h.Kind == Process:
		n.PID = h.PID
	case h.Kind == Thread:
		n.PID = h.Number
	case h.Kind == Descriptor && n.Link == "":
		n.Link = h.procPath()
	}
	return n
}

// Holders finds the holders of each of the namespaces, by inode: the first 64 processes or threads of each, or 16
// others, and one of each process. For each it searches processes; if it finds none, threads; then open descriptors;
// and last the files that the namespace is bound to. Survey.Denied counts processes that could not be inspected, or do
// not answer. If it is not 0, or if Survey.Skipped mentions descriptors, a namespace without a holder may have one. An
// open mountinfo, a descriptor on its way through a socket, and the kernel itself keep a namespace alive, too, and
// cannot be found.
func Holders(namespaces []Namespace) (map[uint64][]Holder, Survey, error) {
	return newScanner(standardLimits).holders(namespaces)
}

func (s scanner) holders(namespaces []Namespace) (map[uint64][]Holder, Survey, error) {
	return findHolders(namespaces, findProcesses(false), findThreads(false), findDescriptors, s.findNamedMounts)
}

// Occupants finds the processes and threads that are in each of the namespaces, as
// Holders does. It reads no descriptors, of which there may be very many.
func Occupants(namespaces []Namespace) (map[uint64][]Holder, Survey, error) {
	return findHolders(namespaces, findProcesses(false), findThreads(false))
}

func findHolders(namespaces []Namespace, searches ...holderSearch) (map[uint64][]Holder, Survey, error) {
	found := map[uint64][]Holder{}
	wanted := map[uint64]bool{}
	for _, ns := range namespaces {
		wanted[ns.Inode] = true
	}
	note := func(h taskNamespace) {
		of, most := found[h.inode], maxOthers
		if h.Kind == Process || h.Kind == Thread {
			most = maxTasks
		}
		if !wanted[h.inode] || len(of) == most || len(of) > 0 && h.PID != 0 && of[len(of)-1].PID == h.PID {
			return
		}
		found[h.inode] = append(of, h.Holder)
	}
	survey, many := Survey{Backend: "procfs"}, 0
	for _, search := range searches {
		u, err := search(note)
		survey.AddDenied(u.deniedPIDs)
		many = max(many, u.withTooMany)
		if err != nil {
			return nil, survey, err
		}
		for inode := range found {
			delete(wanted, inode)
		}
		if len(wanted) == 0 {
			return found, survey, nil
		}
	}
	survey.skipDescriptors(many)
	return found, survey, nil
}

// taskNamespace is a namespace, by its inode, and a holder of it.
type taskNamespace struct {
	inode uint64
	Holder
	// root is the root directory of a process or thread, as the caller may see it, if the search wants it.
	root string
}

// holderSearch calls note with every holder of one kind, of any namespace.
type holderSearch func(note func(taskNamespace)) (unaskedProcesses, error)

// unaskedProcesses is the gap in a search: the processes that it may not inspect, or that do not answer, and how many
// have more descriptors than it inspects.
type unaskedProcesses struct {
	deniedPIDs  []int
	withTooMany int
}

func (s *Survey) skipDescriptors(many int) {
	if many > 0 {
		s.addSkip("descriptors of %d processes that have very many open", many)
	}
}

// findProcesses finds the namespaces of all processes, and their root directories if roots is set.
func findProcesses(roots bool) holderSearch {
	return func(note func(taskNamespace)) (unaskedProcesses, error) {
		return forEachProcess(procfs.EachParallel, note, func(pid int, _ func()) (foundInProcess, error) {
			h, err := namespaceOfHolder(Holder{Kind: Process, PID: pid}, roots)
			return foundInProcess{namespaces: []taskNamespace{h}}, err
		})
	}
}

// findThreads does the same for the threads that are no processes.
func findThreads(roots bool) holderSearch {
	return func(note func(taskNamespace)) (unaskedProcesses, error) {
		return forEachProcess(procfs.EachParallel, note, func(pid int, step func()) (f foundInProcess, err error) {
			tids, err := sys.OtherThreads(pid)
			for _, tid := range tids {
				step()
				if h, err := namespaceOfHolder(Holder{Kind: Thread, PID: pid, Number: tid}, roots); err == nil {
					f.namespaces = append(f.namespaces, h)
				}
			}
			return f, err
		})
	}
}

// findDescriptors finds the namespaces that processes have open.
func findDescriptors(note func(taskNamespace)) (unaskedProcesses, error) {
	var all sys.Descriptors // which are counted in one pass
	return forEachProcess(procfs.Each, note, func(pid int, step func()) (f foundInProcess, err error) {
		fds, more, err := all.Numbers(strconv.Itoa(pid))
		f.more = more
		for _, fd := range fds {
			step()
			if h, err := namespaceOfHolder(Holder{Kind: Descriptor, PID: pid, Number: fd}, false); err == nil {
				f.namespaces = append(f.namespaces, h)
			}
		}
		return f, err
	})
}

// findNamedMounts finds the namespaces that are bound to files: mounts of the one
// file system that all namespaces lie on.
func (s scanner) findNamedMounts(note func(taskNamespace)) (unaskedProcesses, error) {
	major, minor, err := namespaceDevice()
	if err != nil {
		return unaskedProcesses{}, err
	}
	_, err = s.backend.scan(func(b *MountBrief) bool { return b.Major == major && b.Minor == minor }, func(m *Mount) {
		if inode, ok := inodeOf(m.Root); ok {
			note(taskNamespace{inode: inode, Holder: Holder{Kind: NamedMount, Mount: m}})
		}
	})
	return unaskedProcesses{}, err
}

// namespaceOfHolder reads which mount namespace the holder holds and, if root is set, where the root directory of that
// process or thread is.
func namespaceOfHolder(h Holder, root bool) (found taskNamespace, err error) {
	found.Holder = h
	if found.inode, err = h.namespace(); err == nil && root {
		found.root, err = sys.ReadlinkProc(strings.TrimSuffix(h.procPath(), "ns/mnt") + "root")
	}
	return found, err
}

// namespace reads which mount namespace the holder holds.
func (h Holder) namespace() (inode uint64, err error) {
	link, err := sys.ReadlinkProc(h.procPath())
	if err != nil {
		return 0, err
	}
	inode, ok := inodeOf(link)
	if !ok {
		return 0, sys.EINVAL // a descriptor of something else
	}
	return inode, nil
}

// inodeOf reads N out of "mnt:[N]".
func inodeOf(link string) (uint64, bool) {
	rest, ok := strings.CutPrefix(link, "mnt:[")
	number, closed := strings.CutSuffix(rest, "]")
	n, err := strconv.ParseUint(number, 10, 64)
	return n, ok && closed && err == nil
}

// foundInProcess holds the namespaces found in a process; more: it has more descriptors than were inspected.
type foundInProcess struct {
	namespaces []taskNamespace
	more       bool
}

// passProcesses is procfs.Each, or EachParallel.
type passProcesses func(pids []int, look func(pid int, step func()) (foundInProcess, error), take func(pid int, found foundInProcess, err error))

// forEachProcess calls note with the finds of look in every process, and returns the processes that it may not inspect,
// or that do not answer. A process that ends meanwhile is left out.
func forEachProcess(pass passProcesses, note func(taskNamespace), look func(pid int, step func()) (foundInProcess, error)) (u unaskedProcesses, err error) {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return u, err
	}
	pass(pids, look, func(pid int, f foundInProcess, failed error) {
		if f.more {
			u.withTooMany++
		}
		switch {
		case errors.Is(failed, fs.ErrPermission), errors.Is(failed, procfs.ErrSilent):
			u.deniedPIDs = append(u.deniedPIDs, pid)
		case failed == nil:
			for _, h := range f.namespaces {
				note(h)
			}
		case !procfs.Ended(failed):
			err = failed
		}
	})
	return u, err
}
