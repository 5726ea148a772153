// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package devholder

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"kubediag.org/kubediag/internal/linux/blockdev"
	"kubediag.org/kubediag/internal/linux/procfs"
	"kubediag.org/kubediag/internal/linux/sys"
)

// taskInfo is a process or thread to inspect.
type taskInfo struct {
	pid  int
	dir  string // below /proc
	name string // of the thread, in words; empty for a process
	step func() // says that the task still answers
}

// findInProcesses looks into every process, by its main thread.
func (j *job) findInProcesses(ctx context.Context) error {
	return j.eachProcess(ctx, func(pid int, step func()) error {
		t := taskInfo{pid: pid, dir: strconv.Itoa(pid), step: step}
		program, err := j.lookInto(t)
		if err == nil {
			err = j.findMappings(t, program)
		}
		return err
	})
}

// findInThreads inspects the threads that are no processes: a thread may have its own descriptors or directories.
func (j *job) findInThreads(ctx context.Context) error {
	return j.eachProcess(ctx, func(pid int, step func()) error {
		tids, err := sys.OtherThreads(pid)
		for _, tid := range tids {
			number := strconv.Itoa(tid)
			thread := taskInfo{pid: pid, dir: strconv.Itoa(pid) + "/task/" + number, name: "thread " + number, step: step}
			if _, err := j.lookInto(thread); err != nil && !procfs.Ended(err) {
				return err
			}
		}
		return err
	})
}

// eachProcess calls look with every process but this one, by several threads, and counts processes that could not be
// inspected, or do not answer. A process that ends meanwhile is left out.
func (j *job) eachProcess(ctx context.Context, look func(pid int, step func()) error) error {
	pids, err := sys.ProcNumbers("")
	if err != nil {
		return err
	}
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() })
	var parts sync.WaitGroup
	for _, part := range procfs.Parts(pids) {
		parts.Go(func() {
			var asked atomic.Int64 // the last process that was asked
			procfs.EachApart(part, func(pid int, step func()) (none struct{}, err error) {
				if ctx.Err() != nil || !j.mayAsk(strconv.Itoa(pid)) {
					return none, errUnanswered
				}
				asked.Store(int64(pid))
				return none, look(pid, step)
			}, func(pid int, _ struct{}, err error) {
				if errors.Is(err, procfs.ErrSilent) && asked.Load() == int64(pid) {
					_ = j.giveUp(strconv.Itoa(pid)) // j.failed is it
				}
				j.mu.Lock()
				defer j.mu.Unlock()
				switch {
				case errors.Is(err, errUnanswered), errors.Is(err, procfs.ErrSilent):
					j.tally.Stuck++
				case err != nil && !procfs.Ended(err):
					j.tally.Denied++
				}
			})
		})
	}
	parts.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	return cmp.Or(ctx.Err(), j.failed) // if a line could not be written
}

// link is an open file of a task, by its name below the task's directory.
type link struct {
	name string
	kind Kind
}

// fixed are the links that every task has.
var fixed = []link{{"cwd", WorkingDirectory}, {"root", RootDirectory}, {"exe", Program}}

// batch is how many descriptors are inspected before the next sign of progress.
const batch = 64

// lookInto inspects the open files of a task. program is the path of its program, if that is on the device. A file on the
// device is reported at once: the next one may not answer.
func (j *job) lookInto(task taskInfo) (program string, err error) {
	var counted jobCounts
	counted.Tasks++
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.tally.Tasks += counted.Tasks
		j.tally.Links += counted.Links
		j.tally.Unread += counted.Unread
	}()
	for _, l := range fixed {
		found, err := j.inspectLink(task, l, &counted, func(mask uint32) (sys.Stat, error) { return sys.StatProcPath(task.dir+"/"+l.name, mask) })
		if err != nil {
			return "", err
		}
		if found != nil && found.Kind == Program {
			program = string(found.Path)
		}
	}
	descriptors, err := j.descriptors.Open(task.dir)
	if err != nil {
		return program, err
	}
	defer descriptors.Close()
	if descriptors.More {
		counted.Unread++
	}
	for i, number := range descriptors.Numbers {
		if i%batch == 0 {
			task.step()
		}
		stat := func(mask uint32) (sys.Stat, error) { return descriptors.Stat(number, mask) }
		if _, err := j.inspectLink(task, link{"fd/" + strconv.Itoa(number), OpenFile}, &counted, stat); err != nil {
			return "", err
		}
	}
	return program, nil
}

// inspectLink reports the file behind a link of a task if it is on the device. A link that goes meanwhile is left out; the
// kernel's own threads have no program.
func (j *job) inspectLink(task taskInfo, l link, counted *jobCounts, stat func(mask uint32) (sys.Stat, error)) (*foundFile, error) {
	// The kernel has cached this about the file. The call runs no driver, and no file system answers it but NFS and 9p,
	// for which some kernels ask the server whether the file is there still.
	st, err := stat(sys.StatType | j.Marks.mountMask())
	if procfs.Ended(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	counted.Links++
	f, on := j.Marks.on(task, l, st)
	if !on {
		return nil, nil
	}
	return &f, j.write(jobOutput{Found: &f})
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
	mounted, known := m.fileSystemOf(stat)
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

// fileSystemOf is the file system of a file, if the file's mount is in some namespace and on the device.
func (m deviceMarks) fileSystemOf(stat sys.Stat) (mounted blockdev.Number, known bool) {
	switch {
	case stat.Has(sys.StatUniqueID):
		mounted, known = m.UniqueIDs[stat.MountID]
	case stat.Has(sys.StatMountID):
		mounted, known = m.MountInfoIDs[int(stat.MountID)]
	}
	return mounted, known
}

// mountMask asks statx for the number by which the mounts were found.
func (m deviceMarks) mountMask() uint32 {
	if len(m.UniqueIDs) > 0 {
		return sys.StatUniqueID
	}
	return sys.StatMountID
}
