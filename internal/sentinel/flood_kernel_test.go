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

// flood makes and unlinks files in a directory until the test ends it.
func flood(args []string, ready func(string)) error {
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

// spent is the time that processors have spent on this process.
func spent(t *testing.T) time.Duration {
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

// Whoever can write beside the directory of a subPath can unlink in a loop. That is looked at once a second then, which
// costs little and misses nothing.
func TestFloodOfUnlinks(t *testing.T) {
	p := newPlace(t, Automatic)
	p.pod.Spec.Containers[1].VolumeMounts = []corev1.VolumeMount{{Name: "empty", MountPath: "/y", SubPath: "a/sub"}}
	dir := filepath.Join(p.Volume(p.pod, kubelettest.EmptyDir, "empty"), "a", "sub")
	must(t, os.MkdirAll(dir, 0o755))
	p.Bind(dir, p.Point(p.pod, "empty", "sidecar", 0))
	p.put(p.pod)
	p.start(t)
	actor := kerneltest.Start(t, "unlinks", filepath.Dir(dir))
	p.await(t, "for the watch to be given up", func(s Status) bool { return s.Unwatched == 1 })

	const long = 4 * time.Second
	before, began := spent(t), time.Now()
	for time.Since(began) < long {
		if s := p.guard.Status(); !s.Watching || s.Unwatched != 1 {
			t.Fatalf("during the flood: %+v", s)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if cost := spent(t) - before; cost > long/10 {
		t.Errorf("the flood costs %s of processor time in %s", cost, long)
	}
	must(t, os.Remove(dir))
	p.hears(t, "found StaleSubPath in sidecar of web at 0", "repaired StaleSubPath in sidecar of web: <nil>")
	actor.End()
}
