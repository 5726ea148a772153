// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// taskInfo is a process or thread to inspect.
type taskInfo struct {
	pid  int
	dir  string // below /proc
	name string // of the thread, in words; empty for a process
}

// findInProcesses looks into every process, by its main thread.
func (j *job) findInProcesses(ctx context.Context) error {
	return j.eachProcess(ctx, func(pid int) error {
		t := taskInfo{pid: pid, dir: strconv.Itoa(pid)}
		program, err := j.lookInto(ctx, t)
		if err == nil {
			err = j.findMappings(ctx, t, program)
		}
		return err
	})
}

// findInThreads inspects the threads that are no processes: a thread may have its own descriptors or directories.
func (j *job) findInThreads(ctx context.Context) error {
	return j.eachProcess(ctx, func(pid int) error {
		tids, err := sys.OtherThreads(pid)
		for _, tid := range tids {
			number := strconv.Itoa(tid)
			if _, err := j.lookInto(ctx, taskInfo{pid: pid, dir: strconv.Itoa(pid) + "/task/" + number, name: "thread " + number}); err != nil && !procfs.Ended(err) {
				return err
			}
		}
		return err
	})
}

// eachProcess calls look with every process but this one, and counts processes that could not be inspected, or do not
// answer. A process that ends meanwhile is left out.
func (j *job) eachProcess(ctx context.Context, look func(pid int) error) error {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if pid == os.Getpid() {
			continue
		}
		switch err := look(pid); {
		case errors.Is(err, errUnanswered):
			j.tally.Stuck++
		case err != nil && !procfs.Ended(err):
			j.tally.Denied++
		}
	}
	return ctx.Err()
}

// link is an open file of a task, by its name below the task's directory.
type link struct {
	name string
	kind Kind
}

// fixed are the links that every task has.
var fixed = []link{{"cwd", WorkingDirectory}, {"root", RootDirectory}, {"exe", Program}}

// batch is how many links one call inspects.
const batch = 64

// lookInto inspects the open files of a task. program is the path of its program, if that is on the device.
func (j *job) lookInto(ctx context.Context, task taskInfo) (program string, err error) {
	j.tally.Tasks++
	all, err := j.inspectTask(ctx, task, fixed)
	if err != nil {
		return "", err
	}
	for _, f := range all {
		if f.Kind == Program {
			program = string(f.Path)
		}
	}
	fds, more, err := j.descriptors.Of(task.dir)
	if more {
		j.tally.Unread++
	}
	for some := range slices.Chunk(fds, batch) {
		var links []link
		for _, fd := range some {
			links = append(links, link{"fd/" + strconv.Itoa(fd), OpenFile})
		}
		if _, err := j.inspectTask(ctx, task, links); err != nil {
			return "", err
		}
	}
	return program, err
}

// linkMatches holds the files on the device among some links of a task.
type linkMatches struct {
	found []foundFile
	links int
}

// inspectTask inspects links of a task, and reports the files on the device.
func (j *job) inspectTask(ctx context.Context, t taskInfo, links []link) ([]foundFile, error) {
	s, err := callWithin(ctx, j, strconv.Itoa(t.pid), taskTimeout, func() (linkMatches, error) { return j.Marks.matchLinks(t, links) })
	j.tally.Links += s.links
	for _, f := range s.found {
		if err := j.emit(jobOutput{Found: &f}); err != nil {
			return nil, err
		}
	}
	return s.found, err
}

// matchLinks inspects links of a task, up to the first link that it may not inspect. A link that goes meanwhile is left
// out; the kernel's own threads have no program.
func (m deviceMarks) matchLinks(task taskInfo, links []link) (linkMatches, error) {
	var s linkMatches
	for _, l := range links {
		// The kernel has cached this about the file. The call runs no driver, and no file system answers it but NFS and 9p,
		// for which some kernels ask the server whether the file is there still.
		st, err := sys.StatProcPath(task.dir+"/"+l.name, sys.StatType|m.mountMask())
		if procfs.Ended(err) {
			continue
		}
		if err != nil {
			return s, err
		}
		s.links++
		if f, on := m.on(task, l, st); on {
			s.found = append(s.found, f)
		}
	}
	return s, nil
}

// on reports whether the file behind a link is on the device, and describes the file.
func (m deviceMarks) on(task taskInfo, l link, stat sys.Stat) (f foundFile, on bool) {
	f = foundFile{Kind: l.kind, PID: task.pid, Number: blockdev.Number{Major: stat.Major, Minor: stat.Minor}}
	open := func() bool { // a descriptor that was opened with O_PATH keeps a mount in use, but no device
		const path = 0o10000000
		value, _ := sys.FDInfo(task.dir+"/fdinfo/"+l.name[len("fd/"):], "flags") // empty if it is gone
		flags, err := strconv.ParseUint(value, 8, 64)
		return err != nil || flags&path == 0
	}
	detail := ""
	var mounted blockdev.Number // the file system, if the file's mount is in some namespace and on the device
	var known bool
	switch {
	case stat.Has(sys.StatUniqueID):
		mounted, known = m.UniqueIDs[stat.MountID]
	case stat.Has(sys.StatMountID):
		mounted, known = m.MountInfoIDs[int(stat.MountID)]
	}
	switch {
	case stat.IsBlockDevice() && slices.Contains(m.Devices, blockdev.Number{Major: stat.RdevMajor, Minor: stat.RdevMinor}):
		if f.Kind = RawOpen; !open() {
			return f, false
		}
	case known:
		f.Number, f.Mount = mounted, stat.MountID
	case slices.Contains(m.Superblocks, f.Number):
		// Its mount is in no namespace. A mount that was never in one, or was taken out as a whole, is held by a descriptor
		// of its root that was opened with O_PATH.
		switch {
		case !stat.Has(m.mountMask()): // the kernel does not name its mount
		case l.kind == OpenFile && stat.MountRoot && !open():
			f.Kind, detail = DetachedMount, "mounted in no namespace, kept by this descriptor"
		default:
			detail = "its mount is in no namespace: lazily unmounted"
		}
	default:
		return f, false
	}
	name, err := sys.ReadlinkProc(task.dir + "/" + l.name)
	f.Path, f.Detail = []byte(name), []byte(joinDetails(detail, task.name))
	return f, !procfs.Ended(err) // a path may also be too long to be shown
}

// mountMask asks statx for the number by which the mounts were found.
func (m deviceMarks) mountMask() uint32 {
	if len(m.UniqueIDs) > 0 {
		return sys.StatUniqueID
	}
	return sys.StatMountID
}
