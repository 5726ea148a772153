// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package orphan_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/faults/orphan"
	"kubediag.org/kubediag/internal/faults/orphan/orphantest"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// TestKubeletInItsOwnNamespace: the paths are those that the kubelet sees, and here there is nothing.
func TestKubeletInItsOwnNamespace(t *testing.T) {
	s := orphantest.New(t)
	root := t.TempDir()
	process := kerneltest.Start(t, "kubelet", root)
	s.Inspector.Kubelet = &kubelet.Finder{PID: process.PID, Root: root}
	p := onlyPod(t, s)
	if why := strings.Join(p.Refusals, "; "); len(p.Actions) > 0 || !strings.Contains(why, "not known whether this kubelet tries only once") {
		t.Fatalf("pod = %+v, want no steps, as the program of that process is not a kubelet's", p)
	}
	record := filepath.Join("/proc", strconv.Itoa(process.PID), "root", root, "pods", goneUID, volume, "vol_data.json")
	s.Must(os.Truncate(record, 0))
	if p = onlyPod(t, s); len(p.Actions) != 3 {
		t.Fatalf("pod = %+v, want three steps", p)
	}
	removeAll(t, s, p.Actions)
	if left, err := s.Inspector.LeftVolumes(t.Context(), goneUID); len(left) > 0 || err != nil {
		t.Errorf("left %q, %v", left, err)
	}
	if absent, err := s.Inspector.GoneDirectories(t.Context(), []string{goneUID}); absent[goneUID] || err != nil {
		t.Errorf("gone: %v, %v, want that its directory is there", absent, err)
	}
	if names, err := os.ReadDir(root); err != nil || len(names) > 0 {
		t.Errorf("here: %v, %v, want an empty directory", names, err)
	}
}

// TestNoPodYet: a kubelet that has had no pod has no directory of them.
func TestNoPodYet(t *testing.T) {
	s := orphantest.New(t)
	s.Must(os.RemoveAll(s.Node.PodsDir()))
	if found := surveyScene(t, s); found.Directories != 0 || len(found.Pods) != 0 || found.Coverage != nil {
		t.Errorf("survey = %+v", found)
	}
}

// TestAgeCountsFromWhatWasMade: what was removed a moment ago makes nothing young again, and what has come since does.
func TestAgeCountsFromWhatWasMade(t *testing.T) {
	s := orphantest.New(t)
	s.Leave(goneUID)
	made := time.Now()
	s.Inspector.MinimumAge, s.Inspector.Now = 500*time.Millisecond, time.Now
	for time.Since(made) < 2*s.Inspector.MinimumAge {
		time.Sleep(10 * time.Millisecond)
	}
	steps := onlyPod(t, s).Actions
	removeAll(t, s, steps[:4])
	s.Inspector.MinimumAge = time.Hour
	if _, err := s.Inspector.Apply(t.Context(), steps[4]); !errors.Is(err, orphan.ErrNotRemovable) {
		t.Errorf("apply: %v, want ErrNotRemovable: all of it is younger than an hour", err)
	}
}
