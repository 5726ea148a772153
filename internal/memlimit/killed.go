// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Mark says that a program runs, in a file that it removes when it stops by itself. The file has the kernel's identity of the boot, and how
// many processes the kernel had killed for memory then.
type Mark struct{ file string }

// SetMark writes the mark. It reports whether the program that wrote the last one was probably killed for memory: it did not remove its
// mark, the machine was not started since, and the kernel has killed a process for memory since.
func SetMark(file string) (mark *Mark, killed bool, err error) { return setMark(file, "/proc") }

func setMark(file, proc string) (mark *Mark, killed bool, err error) {
	boot, kills, err := bootAndKills(proc)
	if err != nil {
		return nil, false, err
	}
	was, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("reading mark: %w", err)
	}
	oldBoot, rest, _ := strings.Cut(strings.TrimSpace(string(was)), " ")
	oldKills, numberErr := strconv.ParseUint(rest, 10, 64)
	killed = err == nil && numberErr == nil && oldBoot == boot && kills > oldKills
	part := file + ".part"
	err = os.WriteFile(part, fmt.Appendf(nil, "%s %d\n", boot, kills), 0o600)
	if err == nil {
		err = os.Rename(part, file)
	}
	if err != nil {
		return nil, killed, fmt.Errorf("writing mark: %w", err)
	}
	return &Mark{file}, killed, nil
}

// Remove says that the program stops by itself. It does nothing without a mark.
func (m *Mark) Remove() error {
	if m == nil {
		return nil
	}
	if err := os.Remove(m.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing mark: %w", err)
	}
	return nil
}

// bootAndKills reads the identity of the boot and the kernel's counter of processes killed for memory, which is that of the machine.
func bootAndKills(proc string) (boot string, kills uint64, err error) {
	id, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return "", 0, fmt.Errorf("reading identity of the boot: %w", err)
	}
	counters, err := os.ReadFile(filepath.Join(proc, "vmstat"))
	if err != nil {
		return "", 0, fmt.Errorf("reading counters of memory: %w", err)
	}
	for line := range bytes.Lines(counters) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "oom_kill "); ok {
			if kills, err = strconv.ParseUint(text, 10, 64); err != nil {
				return "", 0, fmt.Errorf("reading counters of memory: %w", err)
			}
			return strings.TrimSpace(string(id)), kills, nil
		}
	}
	return strings.TrimSpace(string(id)), 0, nil // before 4.13: never killed
}
