// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package subpathremount

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/processor"
)

// rounds of remounting that the recoverer is raced against.
const rounds = 1000

// TestRacingRemounts has one side put stale and healthy mounts at the same place in turn, as fast as it can, while the
// other plans and applies without a pause. A healthy mount must still be there when the side that made it takes it
// away; a stale one may be gone.
func TestRacingRemounts(t *testing.T) {
	w := admit(t)
	w.pod.Spec.Containers[1].VolumeMounts = nil
	w.pods.Set(w.pod)
	must(t, sys.UnmountPath(w.point, false))
	must(t, sys.UnmountPath(w.Point(w.pod, "configmap", "sidecar", 0), false))
	stop := make(chan struct{})
	tally := make(chan map[string]int)
	go func() { tally <- w.keepHealing(t, stop) }()

	healthy := filepath.Join(w.Volume(w.pod, kubelettest.ConfigMap, "configmap"), "..data", "key")
	for i := range rounds {
		w.putStale(t, i)
		if i%4 == 0 {
			w.await(t) // else the healer would hardly ever be in time
		}
		if err := unmount(w.point); err != nil && !errors.Is(err, sys.EINVAL) {
			t.Fatal(err)
		}
		w.Stack(healthy, w.point)
		if err := unmount(w.point); err != nil {
			t.Fatalf("round %d: the healthy mount is gone: %v", i, err)
		}
	}
	close(stop)
	counts := <-tally
	t.Logf("the recoverer's side: %v", counts)
	if counts["unmounted"] < rounds/4 || counts["planned"] == 0 {
		t.Errorf("%v: too little happened for the race to prove anything", counts)
	}
}

// unmount tries again where the other side is just looking at the mount. EINVAL means that nothing is mounted.
func unmount(point string) error {
	for {
		if err := sys.UnmountPath(point, false); !errors.Is(err, sys.EBUSY) {
			return err
		}
	}
}

// putStale binds a file and deletes it.
func (w *ward) putStale(t *testing.T, i int) {
	t.Helper()
	source := filepath.Join(w.Root, "lost"+strconv.Itoa(i))
	must(t, os.WriteFile(source, nil, 0o644))
	w.Stack(source, w.point)
	must(t, os.Remove(source))
}

// await waits until nothing is mounted any more.
func (w *ward) await(t *testing.T) {
	t.Helper()
	for t.Context().Err() == nil {
		if _, err := mount.Inspect(w.point); errors.Is(err, mount.ErrNotMounted) {
			return
		}
	}
}

// keepHealing plans and applies until it is told to stop, and counts what came of it.
func (w *ward) keepHealing(t *testing.T, stop chan struct{}) map[string]int {
	counts := map[string]int{}
	for {
		select {
		case <-stop:
			return counts
		default:
		}
		p, err := w.healer.Plan(t.Context(), w.request)
		if err != nil {
			counts["plan: "+err.Error()]++
			continue
		}
		for _, a := range p.Actions {
			counts["planned"]++
			message, err := w.healer.Apply(t.Context(), w.request, a)
			switch {
			case err == nil:
				counts[message]++
			case processor.IsStalled(err):
				counts["refused"]++
			default:
				counts["failed"]++
			}
		}
	}
}
