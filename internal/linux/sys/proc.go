// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxProcFile bounds one file of /proc: a mountinfo of 300,000 mounts.
const maxProcFile = 64 << 20

// errNoProcfs is returned where /proc is not there, or is something else.
var errNoProcfs = errors.New("no process file system is mounted at /proc")

// ErrTooLarge is returned for a file of /proc beyond 64 MiB, or beyond another given bound.
var ErrTooLarge = errors.New("file of /proc too large")

var ownProcfs struct {
	sync.Mutex
	fd *FD
}

// Procfs is the process' own /proc, opened once and never closed by callers. A thread that has entered another mount
// namespace must not use the path /proc: the owner of that namespace may have mounted anything there.
// EnterMountNamespace and UnshareMounts open this descriptor before they leave.
func Procfs() (*FD, error) {
	ownProcfs.Lock()
	defer ownProcfs.Unlock()
	if ownProcfs.fd != nil {
		return ownProcfs.fd, nil
	}
	fd, err := openat(unix.AT_FDCWD, "/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoProcfs, err)
	}
	if err := fd.expectMagic(unix.PROC_SUPER_MAGIC); err != nil {
		fd.Close()
		return nil, fmt.Errorf("%w: %w", errNoProcfs, err)
	}
	ownProcfs.fd = fd
	return fd, nil
}

// expectMagic fails with ENODEV if f lies on another type of file system.
// Only for local file systems: statfs waits for a remote one.
func (f *FD) expectMagic(magic int64) error {
	st, err := f.statfs()
	if err != nil {
		return err
	}
	if int64(st.Type) != magic {
		return fmt.Errorf("file system type %#x: %w", st.Type, unix.ENODEV)
	}
	return nil
}

// OpenProc opens a file below the process' own /proc for reading ("123/ns/mnt").
func OpenProc(name string) (*FD, error) { return openProc(name, unix.O_RDONLY) }

// OpenProcPath opens a file or directory below the process' own /proc with
// O_PATH, following its last link ("123/root" is that process' root).
func OpenProcPath(name string) (*FD, error) { return openProc(name, unix.O_PATH) }

// StatProcPath is OpenProcPath and Stat in one call, which keeps nothing open.
func StatProcPath(name string, mask uint32) (Stat, error) {
	proc, err := Procfs()
	if err != nil {
		return Stat{}, err
	}
	return statx(proc.number, name, statxNoSync, mask)
}

func openProc(name string, flags int) (*FD, error) {
	proc, err := Procfs()
	if err != nil {
		return nil, err
	}
	return openat(proc.number, name, flags|unix.O_CLOEXEC)
}

// ReadProc reads a whole file below the process' own /proc into buf[:0], which
// grows as needed, and closes it at once: an open mountinfo pins the mount
// namespace, and with it every device mounted there.
func ReadProc(name string, buf []byte) ([]byte, error) {
	return ReadProcUpTo(name, buf, maxProcFile)
}

// ReadProcUpTo is ReadProc of a file that is ErrTooLarge beyond so many bytes.
func ReadProcUpTo(name string, buf []byte, most int) ([]byte, error) {
	fd, err := OpenProc(name)
	if err != nil {
		return nil, err
	}
	defer fd.Close()
	return fd.readAll(buf, most)
}

// ReadProcHead reads the beginning of a file below the process' own /proc with one read(2), at most a page, into
// buf[:0].
func ReadProcHead(name string, buf []byte) ([]byte, error) {
	fd, err := OpenProc(name)
	if err != nil {
		return nil, err
	}
	if cap(buf) < unix.Getpagesize() {
		buf = make([]byte, unix.Getpagesize())
	}
	return fd.readHead(buf[:unix.Getpagesize()])
}

// ReadPathHead reads the beginning of a file anywhere into buf, in one read(2): as much as buf has room for, or a page
// where buf is empty. It does not wait for a pipe (EAGAIN).
func ReadPathHead(path string, buf []byte) ([]byte, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if len(buf) == 0 {
		buf = make([]byte, unix.Getpagesize())
	}
	return fd.readHead(buf)
}

// readHead also closes f.
func (f *FD) readHead(buf []byte) ([]byte, error) {
	defer f.Close()
	n, err := retryInterrupted(func() (int, error) { return unix.Read(f.number, buf) })
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// readAll reads the rest of f into buf[:0], growing it, up to so many bytes.
func (f *FD) readAll(buf []byte, most int) ([]byte, error) {
	buf = buf[:0]
	for {
		if cap(buf)-len(buf) < unix.Getpagesize() {
			buf = append(buf, make([]byte, max(cap(buf), 2*unix.Getpagesize()))...)[:len(buf)]
		}
		n, err := retryInterrupted(func() (int, error) { return unix.Read(f.number, buf[len(buf):cap(buf)]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buf, nil
		}
		if buf = buf[:len(buf)+n]; len(buf) > most {
			return nil, ErrTooLarge
		}
	}
}

// Read fills buf from f, until it is full or f has ended (0 at the end).
func (f *FD) Read(buf []byte) (n int, err error) {
	for n < len(buf) {
		got, err := retryInterrupted(func() (int, error) { return unix.Read(f.number, buf[n:]) })
		if err != nil || got == 0 {
			return n, err
		}
		n += got
	}
	return n, nil
}

// PollPriority reports whether f has an exceptional condition (POLLPRI), without waiting. For an open mountinfo this is
// a change of the mounts of its namespace, since it was opened or polled last (2.6.30).
func (f *FD) PollPriority() (bool, error) {
	fds := []unix.PollFd{{Fd: int32(f.number), Events: unix.POLLPRI}}
	_, err := retryInterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	return fds[0].Revents != 0, err // also events without a request: an error, or an invalid descriptor
}

// ReadlinkProc reads a link below the process' own /proc ("123/ns/mnt" gives
// "mnt:[4026531840]"). EACCES without the right to trace the process; there,
// Linux 5.10 gives an empty link of a namespace and no error.
func ReadlinkProc(name string) (string, error) {
	proc, err := Procfs()
	if err != nil {
		return "", err
	}
	var buf [unix.PathMax]byte
	n, err := retryInterrupted(func() (int, error) { return unix.Readlinkat(proc.number, name, buf[:]) })
	if err == nil && n == 0 {
		err = EACCES
	}
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// ProcNumbers lists the entries of a directory below the process' own /proc
// that are numbers: processes (""), threads ("123/task"). The kernel bounds how
// many there are of either.
func ProcNumbers(name string) ([]int, error) {
	numbers, _, err := procNumbers(name, math.MaxInt)
	return numbers, err
}

func procNumbers(name string, limit int) (numbers []int, more bool, err error) {
	dir, err := openProc("./"+name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, false, err
	}
	defer dir.Close()
	return dir.listNumbers(limit)
}

// listNumbers lists the entries of a directory that are numbers, at most so many, and says whether there are more.
func (f *FD) listNumbers(limit int) (numbers []int, more bool, err error) {
	const lengthAt, nameAt = int(unsafe.Offsetof(unix.Dirent{}.Reclen)), int(unsafe.Offsetof(unix.Dirent{}.Name))
	var buf [8 << 10]byte // of records of the kernel (getdents64(2))
	for {
		n, err := retryInterrupted(func() (int, error) { return unix.ReadDirent(f.number, buf[:]) })
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			return numbers, false, nil
		}
		for rest := buf[:n]; len(rest) > 0; {
			length := int(binary.NativeEndian.Uint16(rest[lengthAt:]))
			name, _, _ := bytes.Cut(rest[nameAt:length], []byte{0})
			rest = rest[length:]
			number, ok := entryNumber(name)
			if !ok {
				continue
			}
			if len(numbers) == limit {
				return numbers, true, nil
			}
			numbers = append(numbers, number)
		}
	}
}

// entryNumber is the number that is the name of an entry.
func entryNumber(name []byte) (n int, ok bool) {
	for _, digit := range name {
		if digit < '0' || digit > '9' || n > math.MaxInt32 {
			return 0, false
		}
		n = n*10 + int(digit-'0')
	}
	return n, len(name) > 0
}

// ProcThreads counts the threads of a process without listing them.
func ProcThreads(pid int) (int, error) {
	proc, err := Procfs()
	if err != nil {
		return 0, err
	}
	st, err := proc.StatAt(strconv.Itoa(pid)+"/task", StatNlink)
	return int(st.Nlink) - 2, err
}

// OtherThreads lists the threads of a process but its main one.
func OtherThreads(pid int) ([]int, error) {
	if n, err := ProcThreads(pid); err != nil || n < 2 {
		return nil, err
	}
	tids, err := ProcNumbers(strconv.Itoa(pid) + "/task")
	return slices.DeleteFunc(tids, func(tid int) bool { return tid == pid }), err
}

// ThreadProc names a file of the calling thread below /proc ("mountinfo").
// The caller must be locked to its thread, or be content with any of the
// process' threads. /proc/self is no substitute: it is the main thread.
func ThreadProc(name string) string { return "thread-self/" + name }

// FDMountID reads the mount ID of an open file from its fdinfo (3.15), for kernels
// whose statx does not give it.
func (f *FD) FDMountID() (int, error) {
	value, err := FDInfo(ThreadProc("fdinfo/"+f.String()), "mnt_id")
	if err == nil && value == "" {
		err = fmt.Errorf("read mount id of descriptor: %w", unix.ENOSYS)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}

// mountID is the mount ID of an open file: by statx, or by FDMountID, which takes ten times as long.
func (f *FD) mountID() (int, error) {
	stat, err := f.Stat(StatMountID)
	if err == nil && stat.Has(StatMountID) {
		return int(stat.MountID), nil
	}
	return f.FDMountID()
}

// FDInfo reads a field of the kernel's text about an open descriptor, "123/fdinfo/4" below the process' own /proc
// (proc_pid_fdinfo(5)); empty if there is no such field.
func FDInfo(name, field string) (value string, err error) {
	text, err := ReadProcHead(name, nil)
	return fieldValue(text, field), err
}

func fieldValue(text []byte, field string) string {
	for line := range bytes.Lines(text) {
		if value, found := bytes.CutPrefix(line, []byte(field+":")); found {
			return string(bytes.TrimSpace(value))
		}
	}
	return ""
}
