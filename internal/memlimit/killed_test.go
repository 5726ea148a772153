// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// fakeProc is a directory like /proc.
func fakeProc(t *testing.T, boot string, kills int) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sys/kernel/random/boot_id": boot + "\n", "vmstat": fmt.Sprintf("nr_free_pages 7\noom_kill %d\nunevictable_pgs 1\n", kills),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMark: a program was killed for memory if it left its mark in this boot, and the kernel has killed for memory since.
func TestMark(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "running")
	for i, step := range []struct {
		what   string
		boot   string
		kills  int
		clean  bool // the program before stopped by itself
		broken string
		want   bool
	}{
		{what: "first", boot: "a", kills: 3},
		{what: "after a crash", boot: "a", kills: 3},
		{what: "after a kill", boot: "a", kills: 4, want: true},
		{what: "after one more", boot: "a", kills: 5, want: true},
		{what: "after a stop, with kills of others", boot: "a", kills: 6, clean: true},
		{what: "after a start of the machine", boot: "b", kills: 9},
		{what: "after a damaged mark", boot: "b", kills: 10, broken: "b x"},
		{what: "after an empty mark", boot: "b", kills: 11, broken: " "},
		{what: "and then a kill", boot: "b", kills: 12, want: true},
	} {
		proc := fakeProc(t, step.boot, step.kills)
		if step.clean {
			if err := (&Mark{file}).Remove(); err != nil {
				t.Fatal(err)
			}
		}
		if step.broken != "" {
			if err := os.WriteFile(file, []byte(step.broken), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, killed, err := setMark(file, proc); err != nil || killed != step.want {
			t.Errorf("%d, %s: killed %t, %v", i, step.what, killed, err)
		}
	}
	if _, killed, err := SetMark(filepath.Join(t.TempDir(), "running")); err != nil || killed {
		t.Errorf("on this machine: %t, %v", killed, err)
	}
	if _, _, err := SetMark(filepath.Join(t.TempDir(), "missing", "running")); err == nil {
		t.Error("no error without a directory")
	}
}
