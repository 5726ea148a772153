// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// unlinkLoop creates and unlinks files in a directory until the test ends it.
func unlinkLoop(args []string, ready func(string)) error {
	go func() {
		for i := 0; ; i = (i + 1) % 64 {
			name := filepath.Join(args[0], strconv.Itoa(i))
			if f, err := os.Create(name); err == nil {
				_ = f.Close()
				_ = os.Remove(name)
			}
		}
	}()
	ready("")
	kerneltest.WaitForEnd()
	return nil
}

// cpuTime returns the CPU time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile("/proc/self/stat")
	must(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(field)
		must(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// TestUnlinkFloodIsPolled unlinks in a loop beside the directory of a subPath. The bind is polled once a second, which
// costs little and misses nothing.
func TestUnlinkFloodIsPolled(t *testing.T) {
	f := newBindFixture(t, Automatic)
	f.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "a/sub"}}
	dir := filepath.Join(f.Volume(f.pod, kubelettest.EmptyDir, "empty"), "a", "sub")
	must(t, os.MkdirAll(dir, 0o755))
	f.Bind(dir, f.Point(f.pod, "empty", "sidecar", 0))
	f.put(f.pod)
	f.start(t)
	actor := kerneltest.Start(t, "unlinks", filepath.Dir(dir))
	f.waitFor(t, "for the watch to be given up", func(s Status) bool { return s.Unwatched == 1 })

	const long = 4 * time.Second
	before, began := cpuTime(t), time.Now()
	for time.Since(began) < long {
		if s := f.sentinel.Status(); !s.Watching || s.Unwatched != 1 {
			t.Fatalf("during the flood: %+v", s)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if cost := cpuTime(t) - before; cost > kerneltest.Patience(long/10) {
		t.Errorf("the flood costs %s of processor time in %s", cost, long)
	}
	must(t, os.Remove(dir))
	f.expect(t, "found StaleSubPath in sidecar of web at 0", "repaired StaleSubPath in sidecar of web: <nil>")
	actor.End()
}
