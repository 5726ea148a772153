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

// AgentMemory is what the agent's container may take, by its DaemonSet.
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
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &most); err == nil {
			break
		}
	}
	if most <<= 10; most == 0 || most > AgentMemory {
		t.Errorf("took %d MiB of memory at the most, want less than %d", most>>20, AgentMemory>>20)
	}
	return most
}
