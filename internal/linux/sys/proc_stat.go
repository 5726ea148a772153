// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcStat is the file stat of a process or thread below /proc (proc_pid_stat(5)).
type ProcStat struct {
	Name  string // of the program, or any other: each thread chooses its own
	State byte   // such as 'D': it waits, and no signal interrupts that
	// Started is when it has started, in ticks since the machine has. A number that is
	// used again has another.
	Started string
	flags   uint64
	pending uint64 // signals, as bits
}

var errProcStat = errors.New("line of /proc/PID/stat not understood")

// ReadProcStat reads the stat of a process or thread by its directory below the
// process' own /proc ("123", "123/task/124").
func ReadProcStat(dir string) (ProcStat, error) {
	text, err := ReadProcHead(dir+"/stat", nil)
	if err != nil {
		return ProcStat{}, err
	}
	return ParseProcStat(text)
}

// ReadProcStatus returns the value of a line of the file status in the directory of a process or thread, without the space around it. It is empty if
// the kernel shows no such line. The kernel shows this file of any process, also of one that is locked as it becomes another program; see proc_pid_status(5).
func ReadProcStatus(dir, name string) (value string, err error) {
	text, err := ReadProcHead(dir+"/status", nil)
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut("\n"+string(text), "\n"+name+":")
	value, _, _ = strings.Cut(rest, "\n")
	return strings.TrimSpace(value), nil
}

// ParseProcStat reads the text of a file stat. The name may have anything in it, so that
// only the last bracket ends it.
func ParseProcStat(text []byte) (ProcStat, error) {
	const pending, after = 31, 3 // the number of a field, and that of the first one after the name
	start, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if start < 0 || end < start {
		return ProcStat{}, errProcStat
	}
	fields := bytes.Fields(text[end+1:])
	if len(fields) <= pending-after || len(fields[0]) != 1 {
		return ProcStat{}, errProcStat
	}
	s := ProcStat{Name: string(text[start+1 : end]), State: fields[0][0], Started: string(fields[22-after])}
	for number, to := range map[int]*uint64{9: &s.flags, pending: &s.pending} {
		n, err := strconv.ParseUint(string(fields[number-after]), 10, 64)
		if err != nil {
			return ProcStat{}, fmt.Errorf("%w: field %d: %w", errProcStat, number, err)
		}
		*to = n
	}
	return s, nil
}

// isKernelThread reports whether it is a thread of the kernel. Its name proves nothing: any process can choose one.
func (s ProcStat) isKernelThread() bool {
	const flag = 0x00200000 // PF_KTHREAD
	return s.flags&flag != 0
}

// isKilled reports whether it has ended, or has SIGKILL pending and will.
func (s ProcStat) isKilled() bool {
	return s.State == 'Z' || s.State == 'X' || s.pending&(1<<(unix.SIGKILL-1)) != 0
}
