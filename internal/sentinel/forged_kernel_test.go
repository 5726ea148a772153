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
)

// listed hands on what a look has planned, and what became of each step.
type listed struct {
	Volumes
	looks chan []*volume.Health
	steps chan string
}

func (l *listed) Inspect(ctx context.Context, s volume.Selection) (*volume.Survey, error) {
	survey, err := l.Volumes.Inspect(ctx, s)
	if err == nil {
		l.looks <- survey.Broken()
	}
	return survey, err
}

func (l *listed) ApplyAll(ctx context.Context, actions []fault.Action, each func(i int, done fault.Applied, err error) bool) {
	l.Volumes.ApplyAll(ctx, actions, func(i int, done fault.Applied, err error) bool {
		l.steps <- actions[i].Mount.Point
		return each(i, done, err)
	})
}

// TestAForgedDeath: the volume is healthy. A workload, root of a user namespace of its own, has a file system of the same
// type, source and root die at the place where its container has the volume to read alone.
func TestAForgedDeath(t *testing.T) {
	w := newWard(t, Automatic)
	at := filepath.Join(t.TempDir(), "data")
	w.scene.Pod.Spec.Containers[0].VolumeMounts[0].MountPath, w.scene.Pod.Spec.Containers[0].VolumeMounts[0].ReadOnly = at, true
	w.scene.Own(at)
	evil, attack := volumetest.Workload{
		User: true, At: at, Source: w.scene.Dir, Serve: []string{w.scene.Dir, "forged"}, Name: volumetest.Name,
	}.Start(t)
	before := w.scene.MountsOf(evil)
	all := &listed{Volumes: w.scene.Inspector, looks: make(chan []*volume.Health, 1000), steps: make(chan string, 1000)}
	w.guard.Volumes = all
	w.start(t)
	select {
	case broken := <-all.looks:
		for _, v := range broken {
			t.Errorf("volume %q is broken: %s, %d copies", v.Name, v.Code, len(v.Copies))
		}
		if len(broken) > 0 {
			t.Logf("a step at %q", <-all.steps)
		}
	case <-time.After(patience):
		t.Fatal("the sentinel does not look")
	}
	if diff := cmp.Diff(before, w.scene.MountsOf(evil)); diff != "" {
		t.Errorf("mounts of the workload (-before +after):\n%s", diff)
	}
	if a := attack(); a.Write == "" {
		t.Error("the workload has written to the volume")
	}
	if _, err := os.Lstat(filepath.Join(w.scene.Staging, w.scene.Dir, volumetest.Pwned)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in the volume on the host: %v", err)
	}
}
