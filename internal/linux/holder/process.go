// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package holder

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/sys"
)

// maxNamed is how many different holders are named that are no mounts: more of
// them say nothing new.
const maxNamed = 1000

// entry is what makes a holder of its own. Processes that agree in it share one.
type entry struct {
	kind         Kind
	path, detail string
}

// add notes a holder that is no mount.
func (s *search) add(h Holder) {
	key := entry{h.Kind, h.Path, h.Detail}
	if i, known := s.entries[key]; known {
		pids := &s.report.Holders[i].PIDs
		for _, pid := range h.PIDs {
			if !slices.Contains(*pids, pid) {
				*pids = append(*pids, pid)
			}
		}
		return
	}
	if len(s.entries) >= maxNamed {
		s.report.Looked.Unnamed++
		return
	}
	s.entries[key] = len(s.report.Holders)
	s.report.Holders = append(s.report.Holders, h)
}

// task is a process or thread that is looked into.
type task struct {
	pid  int
	dir  string // below /proc
	name string // of the thread, in words; empty for a process
}

// processes looks into every process, by its main thread.
func (s *search) processes(ctx context.Context) error {
	maps := &mapReader{}
	return s.eachProcess(ctx, func(pid int) error {
		dir := strconv.Itoa(pid)
		program, err := s.lookInto(task{pid: pid, dir: dir})
		if err != nil {
			return err
		}
		return s.mappings(ctx, maps, pid, program)
	})
}

// threads looks into the threads that are no processes: one may have
// descriptors or directories of its own.
func (s *search) threads(ctx context.Context) error {
	return s.eachProcess(ctx, func(pid int) error {
		if n, err := sys.ProcThreads(pid); err != nil || n < 2 {
			return err
		}
		dir := strconv.Itoa(pid) + "/task"
		tids, err := sys.ProcNumbers(dir)
		for _, tid := range tids {
			if tid == pid {
				continue
			}
			number := strconv.Itoa(tid)
			if _, err := s.lookInto(task{pid: pid, dir: dir + "/" + number, name: "thread " + number}); err != nil && !gone(err) {
				return err
			}
		}
		return err
	})
}

// eachProcess calls look with every process, and counts those that could not be
// looked into. A process that ends meanwhile is passed over.
func (s *search) eachProcess(ctx context.Context, look func(pid int) error) error {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return err
	}
	denied := 0
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := look(pid); err != nil && !gone(err) {
			denied++
		}
	}
	s.report.Looked.Denied = max(s.report.Looked.Denied, denied)
	return ctx.Err()
}

// gone tells whether err only means that what was asked about is no more.
func gone(err error) bool {
	return errors.Is(err, sys.ENOENT) || errors.Is(err, sys.ESRCH)
}

// lookInto looks at what a task has open. program is the path of its program,
// where that is on the device.
func (s *search) lookInto(t task) (program string, err error) {
	s.report.Looked.Tasks++
	for _, link := range []struct {
		name string
		kind Kind
	}{{"cwd", WorkingDirectory}, {"root", RootDirectory}, {"exe", Program}} {
		name, err := s.link(t, link.name, link.kind)
		if err != nil && !gone(err) { // the kernel's own threads have no program
			return "", err
		}
		if link.kind == Program {
			program = name
		}
	}
	fds, more, err := s.descriptors.Of(t.dir)
	if more {
		s.report.Looked.Unread++
	}
	for _, fd := range fds {
		if _, err := s.link(t, "fd/"+strconv.Itoa(fd), OpenFile); err != nil && !gone(err) {
			return "", err
		}
	}
	return program, err
}

// link looks at one thing that a task has open, and gives its path where it is
// on the device.
func (s *search) link(t task, name string, kind Kind) (string, error) {
	link := t.dir + "/" + name
	st, err := statLink(link, s.mountMask())
	if err != nil {
		return "", err
	}
	s.report.Looked.Links++
	h := Holder{Kind: kind, PIDs: []int{t.pid}}
	number := blockdev.Number{Major: st.Major, Minor: st.Minor}
	switch mounted, on := s.mountOf(st); {
	case st.IsBlockDevice() && s.devices[blockdev.Number{Major: st.RdevMajor, Minor: st.RdevMinor}]:
		if pathOnly(t.dir, name) {
			return "", nil
		}
		h.Kind = RawOpen
	case on:
		number = mounted
	case s.super[number]:
		h.Kind, h.Detail = s.unmounted(st, kind, func() bool { return pathOnly(t.dir, name) })
	default:
		return "", nil
	}
	if h.Path, err = sys.ReadlinkProc(link); gone(err) { // a path may also be too long to be told
		return "", err
	}
	h.Detail = join(h.Detail, t.name)
	s.add(h)
	if s.proven = true; h.Kind != RawOpen {
		s.place(number)
	}
	return h.Path, nil
}

// unmounted says what is known of a file whose mount is in no namespace. A
// mount that was never in one, or was taken out as a whole, is held by a
// descriptor of its root that was opened with O_PATH.
func (s *search) unmounted(st sys.Stat, kind Kind, pathOnly func() bool) (Kind, string) {
	switch {
	case !st.Has(s.mountMask()):
		return kind, "" // the kernel does not tell which mount it is on
	case kind == OpenFile && st.MountRoot && pathOnly():
		return DetachedMount, "mounted in no namespace, kept by this descriptor"
	}
	return kind, "its mount is in no namespace: lazily unmounted"
}

// mountMask asks statx for the number by which the mounts were found.
func (s *search) mountMask() uint32 {
	if len(s.unique) > 0 {
		return sys.StatUniqueID
	}
	return sys.StatMountID
}

// mountOf is the file system of a file whose mount is in some namespace and on
// the device.
func (s *search) mountOf(st sys.Stat) (number blockdev.Number, ok bool) {
	switch {
	case st.Has(sys.StatUniqueID):
		number, ok = s.unique[st.MountID]
	case st.Has(sys.StatMountID):
		number, ok = s.reused[int(st.MountID)]
	}
	return number, ok
}

// statLink is what the kernel has cached about the file that a link below /proc
// leads to. It asks no file system and runs no driver.
func statLink(name string, mask uint32) (sys.Stat, error) {
	fd, err := sys.OpenProcPath(name)
	if err != nil {
		return sys.Stat{}, err
	}
	defer fd.Close()
	return fd.Stat(sys.StatType | mask)
}

// pathOnly tells whether a descriptor was opened with O_PATH: it keeps a mount
// in use, but no device.
func pathOnly(dir, name string) bool {
	text, err := sys.ReadProc(dir+"/fdinfo/"+name[len("fd/"):], nil)
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(text, []byte("flags:"))
	value, _, _ := bytes.Cut(rest, []byte("\n"))
	flags, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 8, 64)
	const path = 0o10000000
	return err == nil && flags&path != 0
}
