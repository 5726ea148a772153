// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const pod = "/kubepods.slice/pod1"
	for name, c := range map[string]struct {
		groups string
		files  map[string]string
		want   int64 // 0: none
	}{
		"version 2, own namespace":     {"0::/\n", map[string]string{"memory.max": "268435456\n"}, 256 << 20},
		"version 2, host's namespace":  {"0::" + pod + "/c1\n", map[string]string{pod + "/c1/memory.max": "268435456\n"}, 256 << 20},
		"version 2, of the pod":        {"0::" + pod + "/c1\n", map[string]string{pod + "/c1/memory.max": "max\n", pod + "/memory.max": "1000\n"}, 1000},
		"version 2, the least":         {"0::" + pod + "/c1\n", map[string]string{pod + "/c1/memory.max": "3000\n", pod + "/memory.max": "2000\n"}, 2000},
		"version 2, beside it":         {"0::/../c2\n", map[string]string{"memory.max": "5000\n"}, 5000},
		"version 2, none":              {"0::/\n", map[string]string{"memory.max": "max\n"}, 0},
		"version 1, bound at the root": {"5:cpu:/a\n4:memory:" + pod + "/c1\n0::/\n", map[string]string{"memory/memory.limit_in_bytes": "268435456\n"}, 256 << 20},
		"version 1, two controllers":   {"4:hugetlb,memory:/x\n", map[string]string{"memory/x/memory.limit_in_bytes": "4096\n"}, 4096},
		"version 1, none":              {"4:memory:/\n", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"nothing to be seen":           {"0::" + pod + "\n", nil, 0},
		"nonsense":                     {"x\n0::\n", map[string]string{"memory.max": "-1\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, ok := memoryLimit(root, []byte(c.groups))
			if ok != (c.want > 0) || ok && got != c.want {
				t.Errorf("limit %d, %v, want %d", got, ok, c.want)
			}
		})
	}
}

// gcPercent is the percentage in force.
func gcPercent() int {
	percent := debug.SetGCPercent(-1)
	debug.SetGCPercent(percent)
	return percent
}

// TestDelayCollection: the first collection sets the percentage for those that follow.
func TestDelayCollection(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	percent, limit := debug.SetGCPercent(70), debug.SetMemoryLimit(-1)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
	for _, variable := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv(variable, "100")
		if DelayCollection(); gcPercent() != 70 || debug.SetMemoryLimit(-1) != limit {
			t.Errorf("with %s: percentage %d, limit %d", variable, gcPercent(), debug.SetMemoryLimit(-1))
		}
		t.Setenv(variable, "")
	}
	if DelayCollection(); gcPercent() != -1 || debug.SetMemoryLimit(-1) != collectionBegin {
		t.Errorf("before the first: percentage %d, limit %d", gcPercent(), debug.SetMemoryLimit(-1))
	}
	for debug.SetMemoryLimit(-1) != math.MaxInt64 && t.Context().Err() == nil {
		runtime.GC() // the cleanup comes soon after
	}
	if gcPercent() != growthPercent {
		t.Errorf("after the first: percentage %d", gcPercent())
	}
}
