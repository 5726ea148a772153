// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// AgentMemory is the memory limit of the agent's container, by its DaemonSet.
const AgentMemory = 256 << 20

// Within runs fn, and fails the test where this process has more memory meanwhile
// than the agent may have. The collector works as it does in the agent, which is
// given nine tenths. It gives the most there was.
func Within(t testing.TB, fn func()) (most int) {
	t.Helper()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(AgentMemory / 10 * 9))
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Fatalf("begin to count memory: %v", err)
	}
	fn()
	if most = MemoryOf(t, os.Getpid(), "VmHWM"); most > AgentMemory {
		t.Errorf("took %d MiB of memory at the most, want less than %d", most>>20, AgentMemory>>20)
	}
	return most
}

// MemoryOf returns how many bytes a field of a process' status says, such as VmRSS: proc_pid_status(5).
func MemoryOf(t testing.TB, pid int, field string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	Must(t, err)
	var kib int
	_, rest, _ := strings.Cut(string(status), field+":")
	_, err = fmt.Sscan(rest, &kib)
	Must(t, err)
	return kib << 10
}
