// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/mountstate"
)

// recordedVolumes records the broken volumes of each scan, and each repair.
type recordedVolumes struct {
	Volumes
	scans chan []*volume.Health
	steps chan string
}

func (l *recordedVolumes) Inspect(ctx context.Context, s mountstate.Scope) (*volume.Survey, error) {
	survey, err := l.Volumes.Inspect(ctx, s)
	if err == nil {
		l.scans <- survey.Broken()
	}
	return survey, err
}

func (l *recordedVolumes) Open(podUIDs ...string) func(context.Context, fault.Action) (fault.Applied, error) {
	apply := l.Volumes.Open(podUIDs...)
	return func(ctx context.Context, a fault.Action) (fault.Applied, error) {
		l.steps <- a.Mount.Point
		return apply(ctx, a)
	}
}

// TestForgedDeadMountIsIgnored: the volume is healthy and mounted read-only. A workload is root of its own user
// namespace. At the place of the volume it mounts a dead file system of the same type, source and root.
func TestForgedDeadMountIsIgnored(t *testing.T) {
	f := newVolumeFixture(t, Automatic)
	at := filepath.Join(t.TempDir(), "data")
	f.scene.Pod.Spec.Containers[0].VolumeMounts[0].MountPath, f.scene.Pod.Spec.Containers[0].VolumeMounts[0].ReadOnly = at, true
	f.scene.Own(at)
	evil, attack := volumetest.Workload{
		User: true, At: at, Source: f.scene.Dir, Serve: []string{"forged", f.scene.Dir}, Name: volumetest.Name,
	}.Start(t)
	before := f.scene.MountsOf(evil.PID)
	all := &recordedVolumes{Volumes: f.scene.Inspector, scans: make(chan []*volume.Health, 1000), steps: make(chan string, 1000)}
	f.sentinel.Volumes = all
	f.start(t)
	select {
	case broken := <-all.scans:
		for _, v := range broken {
			t.Errorf("volume %q is broken: %s, %d copies", v.Evidence.Name, v.Verdict.Code, len(v.Copies))
		}
		if len(broken) > 0 {
			t.Logf("a step at %q", <-all.steps)
		}
	case <-time.After(waitLimit):
		t.Fatal("the sentinel does not scan")
	}
	if diff := cmp.Diff(before, f.scene.MountsOf(evil.PID)); diff != "" {
		t.Errorf("mounts of the workload (-before +after):\n%s", diff)
	}
	if a := attack(); a.Write == "" {
		t.Error("the workload has written to the volume")
	}
	if _, err := os.Lstat(filepath.Join(f.scene.Staging, f.scene.Dir, volumetest.Pwned)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in the volume on the host: %v", err)
	}
}

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
