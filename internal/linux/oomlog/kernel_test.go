// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package oomlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m, kerneltest.Roles{"eater": eat}) }

// limit is the limit of the eater's control group, in bytes; it eats four times as much.
const limit = 64 << 20

// eat goes into a control group, says which process it is, and takes memory until it is killed.
func eat(args []string, ready func(string)) error {
	if err := os.WriteFile(filepath.Join(args[0], "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	ready("")
	memory := make([]byte, 4*limit)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	return errors.New("it was not killed")
}

// controlGroup makes one with a limit, in whichever hierarchy has memory, and gives its directory.
func controlGroup(t *testing.T, name string) string {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		if !slices.Contains(strings.Fields(string(controllers)), "memory") {
			t.Skip("kernel lacks a memory controller that can be used here")
		}
		root, file = "/sys/fs/cgroup", "memory.max"
		must(t, os.WriteFile(root+"/cgroup.subtree_control", []byte("+memory"), 0))
	}
	dir := filepath.Join(root, name)
	must(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); ; { // the killed process may not have left yet
			if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
				must(t, err)
				return
			}
		}
	})
	must(t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0))
	return dir
}

var must = kerneltest.Must

// TestKernelLogsAKill has a process killed and finds it in the log with its control group. A name that has a
// backslash in it, as systemd makes them, is given back as it is.
func TestKernelLogsAKill(t *testing.T) {
	name := fmt.Sprintf(`kubediag\x2dtest-%d`, time.Now().UnixNano())
	dir := controlGroup(t, name)
	began := time.Now()
	eater := kerneltest.Start(t, "eater", dir)
	// Text that a process writes to the log is not the kernel's word.
	forged := fmt.Sprintf("<0>Out of memory: Killed process %d (forged) total-vm:1kB\n", os.Getpid())
	must(t, os.WriteFile("/dev/kmsg", []byte(forged), 0))
	kill := await(t, "/"+name)
	if kill.PID != eater.PID || kill.Limit != "/"+name || kill.Node {
		t.Errorf("process %d and limit %q, want %d and %q", kill.PID, kill.Limit, eater.PID, "/"+name)
	}
	if comm, err := os.ReadFile("/proc/self/comm"); err != nil || kill.Name != strings.TrimSpace(string(comm)) && kill.Name != "exe" {
		t.Errorf("name %q, want %q: %v", kill.Name, comm, err)
	}
	if off := kill.Time.Sub(began); off < -10*time.Second || off > 30*time.Second {
		t.Errorf("time %v, and it was started at %v", kill.Time, began)
	}
}

// await returns the kill in a control group, and makes sure that no forged kill is reported. The numbers of processes
// prove neither: the log may have earlier kills with the same.
func await(t *testing.T, group string) Kill {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		kills, err := Kills(ctx)
		must(t, err)
		for _, k := range slices.Backward(kills) {
			switch {
			case k.PID == os.Getpid() && k.Name == "forged":
				t.Fatalf("a process was believed that wrote %+v", k)
			case k.Cgroup == group:
				return k
			}
		}
	}
}

func TestLogIsReadToTheEnd(t *testing.T) {
	began := time.Now()
	kills, err := Kills(t.Context())
	must(t, err)
	t.Logf("%d kills in %v", len(kills), time.Since(began))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Kills(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("after it was cancelled: %v", err)
	}
}
