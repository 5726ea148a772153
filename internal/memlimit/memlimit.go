// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package memlimit keeps a program within the memory of its container.
package memlimit

import (
	"bytes"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Set has the collector keep the program below nine tenths of the memory that its container may have: the kernel would end it
// at the limit. A limit that the user has set by GOMEMLIMIT stays.
func Set() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return // without a limit nothing is wrong
	}
	if limit, ok := memoryLimit("/sys/fs/cgroup", groups); ok {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

// memoryLimit is the least limit of the control groups that are listed, as /proc/self/cgroup has them, and of those above
// them that can be seen: a container may see its own as the uppermost, under any name.
func memoryLimit(root string, groups []byte) (limit int64, ok bool) {
	limit = math.MaxInt64
	for line := range bytes.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dir, file := root, "memory.max" // version 2
		if fields[1] != "" {
			dir, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
			if !slices.Contains(strings.Split(fields[1], ","), "memory") {
				continue
			}
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			text, _ := os.ReadFile(filepath.Join(dir, group, file)) // none: the group has no limit of its own
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, limit < 1<<60 // version 1 has a number for no limit
}

// The first collection of memory comes when the program has so many bytes, and from then on it is collected as it grows by a percentage.
const (
	collectionBegin = 48 << 20
	growthPercent   = 400
)

// DelayCollection is for a program that ends soon: the collection of memory that is hardly garbage yet takes a tenth of its time, and most runs end
// before the first one now. It does nothing if the user's environment says when memory is collected.
func DelayCollection() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(collectionBegin)
	runtime.AddCleanup(new([64]byte), func(struct{}) { // called by the first collection
		debug.SetGCPercent(growthPercent)
		debug.SetMemoryLimit(math.MaxInt64)
	}, struct{}{})
}
