// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
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
