// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package hung makes a test's process keep its readers waiting. It is for the roles of kernel tests, run as root.
package hung

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/lock"
)

// TakeTurn waits until no other test has processes with the name of a kubelet that do not answer, and keeps others from making
// some until the test ends: every search for the kubelet waits for those that there are on the machine.
func TakeTurn(t testing.TB) {
	t.Helper()
	turn, err := lock.Take(t.Context(), filepath.Join(os.TempDir(), "kubediag-hung-kubelets.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { turn.Close() })
}

// Area is a part of the memory of a process that /proc shows.
type Area int

// The areas: /proc/PID/cmdline and /proc/PID/environ.
const (
	Arguments Area = iota
	Environment
)

// Map has an area of this process lie in a file. Kernels before 4.17 ask its file system when the area is read, and later ones
// show nothing. This process itself keeps what it was started with. The file stays open.
func Map(area Area, file string) error {
	fd, err := open(file, unix.O_RDONLY)
	if err != nil {
		return err
	}
	if _, err := unix.Mmap(fd, 0, unix.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("map %q: %w", file, err)
	}
	start, end, err := addresses(file)
	if err != nil {
		return err
	}
	layout, err := current()
	if err != nil {
		return err
	}
	if area == Arguments {
		layout.ArgStart, layout.ArgEnd = start, end
	} else {
		layout.EnvStart, layout.EnvEnd = start, end
	}
	if err := unix.Prctl(unix.PR_SET_MM, unix.PR_SET_MM_MAP, uintptr(unsafe.Pointer(&layout)), unsafe.Sizeof(layout), 0); err != nil {
		return fmt.Errorf("prctl PR_SET_MM_MAP: %w", err)
	}
	return nil
}

// maxWriters is how many threads of LockMemory wait at most, and writerInterval how long after one the next begins.
const (
	maxWriters     = 32
	writerInterval = 100 * time.Millisecond
)

// LockMemory has this process' memory be locked for as long as the file is not written. One thread writes to a page of
// it that is being written back, and waits for that with the area locked, or all of the memory in Linux before 6.4.
// Others change the area, and wait for that thread with the memory locked. Then the arguments and the memory map of
// this process cannot be read. On Linux 5.10 readers may pass a thread that waits for the lock. They no longer do when
// one thread has found, at its first look, that it waits in vain. A thread that is interrupted in that look does not
// find out, so others follow it. LockMemory returns only if the file was written, or its server has ended; see
// kerneltest.AwaitLocked.
func LockMemory(file string) error {
	fd, err := open(file, unix.O_RDWR)
	if err != nil {
		return err
	}
	area, err := unix.Mmap(fd, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %q for writing: %w", file, err)
	}
	ended, over := make(chan error, maxWriters+1), make(chan struct{})
	defer close(over)
	go func() {
		area[0]++
		err := unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
		area[0]++ // waits
		ended <- errors.Join(fmt.Errorf("%q was written", file), err)
	}()
	for range maxWriters {
		go changeArea(area, over, ended)
		select {
		case err := <-ended:
			return err
		case <-time.After(writerInterval):
		}
	}
	return <-ended
}

// changeArea changes what the kernel expects of an area until over is closed.
func changeArea(area []byte, over <-chan struct{}, failed chan<- error) {
	for advice := unix.MADV_RANDOM; ; advice = unix.MADV_RANDOM - advice { // MADV_NORMAL is 0
		select {
		case <-over:
			return
		default:
		}
		if err := unix.Madvise(area, advice); err != nil {
			failed <- fmt.Errorf("madvise: %w", err)
			return
		}
	}
}

// Exec has this process be about to run another program for as long as the file is not closed. Then its memory map cannot be read, nor its
// environment. It does not return.
func Exec(file string) error {
	if _, err := open(file, unix.O_RDONLY); err != nil {
		return err
	}
	return unix.Exec("/bin/true", []string{"true"}, nil)
}

// open opens a file that this process closes when it runs another program.
func open(file string, how int) (int, error) {
	fd, err := unix.Open(file, how|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %q: %w", file, err)
	}
	return fd, nil
}

// layout is struct prctl_mm_map of include/uapi/linux/prctl.h.
type layout struct {
	StartCode, EndCode, StartData, EndData, StartBrk, Brk, StartStack uint64
	ArgStart, ArgEnd, EnvStart, EnvEnd                                uint64
	Auxv                                                              uint64
	AuxvSize                                                          uint32
	ExeFD                                                             uint32
}

// current is the layout of this process' memory as it is.
func current() (l layout, err error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return l, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	for number, to := range map[int]*uint64{
		26: &l.StartCode, 27: &l.EndCode, 28: &l.StartStack, 45: &l.StartData, 46: &l.EndData, 47: &l.StartBrk,
		48: &l.ArgStart, 49: &l.ArgEnd, 50: &l.EnvStart, 51: &l.EnvEnd,
	} {
		if *to, err = strconv.ParseUint(fields[number-3], 10, 64); err != nil {
			return l, err
		}
	}
	l.ExeFD = math.MaxUint32 // as it is
	l.Brk = l.StartBrk
	return l, nil
}

// addresses is where the file is mapped.
func addresses(file string) (start, end uint64, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, " "+file+"\n") {
			continue
		}
		from, rest, _ := strings.Cut(line, "-")
		to, _, _ := strings.Cut(rest, " ")
		a, errFrom := strconv.ParseUint(from, 16, 64)
		b, errTo := strconv.ParseUint(to, 16, 64)
		return a, b, errors.Join(errFrom, errTo)
	}
	return 0, 0, fmt.Errorf("%q is not mapped", file)
}
