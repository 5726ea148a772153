// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package oomlog reads from the kernel's log which processes the kernel has killed when it was out of memory.
//
// It reads the records that the log still holds, once, and never waits. Only records of the kernel itself count; those
// that a process has written have another facility. Processes choose their names and, some, the names of their control
// groups. If a line can be read in two ways, it names no control group. It changes nothing.
//
// It rests on Documentation/ABI/testing/dev-kmsg and on the lines that mm/oom_kill.c prints, from Linux 3.10 on.
package oomlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

// Kill is a process that the kernel has killed when it was out of memory.
type Kill struct {
	// Time is to the second at best: the log counts from the start of the machine, without the time it was suspended.
	Time time.Time
	// PID is the number that the process had, in the first process' namespace.
	PID int
	// Name is the name that the process gave itself, at most 15 bytes.
	Name string
	// Cgroup is the path of its memory control group from the root of the hierarchy; empty if the log does not name it.
	Cgroup string
	// Limit is the control group whose limit was reached; empty if the whole node was out of memory, or the log does
	// not name it.
	Limit string
	// Node: the node as a whole was out of memory, not a control group.
	Node bool
}

const (
	// maxRecord is as long as a record can be.
	maxRecord = 8 << 10
	// maxRecords bounds one look at the log. The largest usual log, of 16 MiB, holds fewer.
	maxRecords = 500_000
	// maxKills is how many kills are reported at most: the newest.
	maxKills = 1_000
)

// Kills lists the kills that the kernel's log still holds, oldest first, at most the newest 1,000. An error that wraps
// fs.ErrNotExist or fs.ErrPermission means that the log cannot be read here.
func Kills(ctx context.Context) ([]Kill, error) {
	p := recordParser{bootTime: time.Now().Add(-sys.Uptime())}
	if err := readRecords(ctx, p.addRecord); err != nil {
		return nil, err
	}
	return p.kills, nil
}

// Messages lists the kernel's own messages that are to be kept, oldest first, each with the time since the start of the
// machine: the newest, at most as many as said. It has the errors of Kills.
func Messages(ctx context.Context, most int, keep func(message string) bool) (lines []string, err error) {
	err = readRecords(ctx, func(record string) {
		at, message, ok := parseRecord(record)
		if !ok || !keep(message) {
			return
		}
		if lines = append(lines, fmt.Sprintf("[%12.6f] %s", at.Seconds(), message)); len(lines) > 2*most {
			lines = append(lines[:0], lines[len(lines)-most:]...)
		}
	})
	return lines[max(0, len(lines)-most):], err
}

// readRecords reads the log, one record after the other.
func readRecords(ctx context.Context, add func(record string)) error {
	log, err := sys.OpenKernelLog()
	if err != nil {
		return fmt.Errorf("read kernel log: %w", err)
	}
	defer log.Close()
	buf := make([]byte, maxRecord)
	for range maxRecords {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := log.Read(buf)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, sys.EINVAL): // longer than any that is of interest
		case err != nil:
			return fmt.Errorf("read kernel log: %w", err)
		default:
			add(string(buf[:n]))
		}
	}
	return nil
}
