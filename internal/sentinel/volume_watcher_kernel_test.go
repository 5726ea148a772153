// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// ward is a node with one pod, whose container app has a volume of a CSI driver, and a sentinel that watches it.
type ward struct {
	*place
	scene *volumetest.Scene
}

func newWard(t *testing.T, mode Mode) *ward {
	t.Helper()
	scene := volumetest.New(t)
	scene.Renews(true)
	connections, err := fuse.Open()
	must(t, err)
	t.Cleanup(func() { must(t, connections.Close()) })
	w := &ward{place: &place{heard: make(chan string, 10000)}, scene: scene}
	w.guard = &Sentinel{
		Mode: mode, Kubelet: scene.Node, Pods: scene, Observer: w, Volumes: scene.Inspector, Connections: connections,
	}
	return w
}

// Found and Repaired say whose mount it is about.
func (w *ward) Found(f fault.Finding, _ time.Duration) {
	w.heard <- fmt.Sprintf("found %s in %q", f.Code, f.Container)
}

func (w *ward) Repaired(f fault.Finding, err error) {
	w.heard <- fmt.Sprintf("repaired %s in %q: %v", f.Code, f.Container, err)
}

func (w *ward) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.guard.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	w.await(t, "to see the connection", func(s Status) bool { return s.Watching && s.Connections == 1 })
}

// hearsAll waits for all of it, in any order.
func (w *ward) hearsAll(t *testing.T, want ...string) {
	t.Helper()
	left := map[string]int{}
	for _, text := range want {
		left[text]++
	}
	for range want {
		select {
		case got := <-w.heard:
			if left[got]--; left[got] < 0 {
				t.Fatalf("heard %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("heard too little; left: %v", left)
		}
	}
}

func (w *ward) reads(t *testing.T, c *kerneltest.Actor, want string) {
	t.Helper()
	if got := w.scene.Read(c); got != want {
		t.Errorf("the container reads %q, want %q", got, want)
	}
}

func TestADeadVolumeIsToldOfAndStaysTrue(t *testing.T) {
	w := newWard(t, Observe)
	c := w.scene.Start()
	w.start(t)
	w.scene.Kill()
	w.hearsAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
	w.await(t, "for both to be present", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] == 2 })
	before := w.scene.MountsOf(c)
	w.scene.Remount("new")
	w.await(t, "for the new connection", func(s Status) bool { return s.Connections == 2 })
	if after := w.scene.MountsOf(c); len(after) != len(before) {
		t.Errorf("mounts of the container: %v, and were %v", after, before)
	}
	w.hearsNothingMore(t)
	c.End()
	w.await(t, "for the container's to be gone", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] < 2 })
}

func TestAutomaticMendsWhatTheDriverHasBroughtBack(t *testing.T) {
	for name, reword := range map[string]func(Volumes) Volumes{
		"as it is":       func(v Volumes) Volumes { return v },
		"in other words": func(v Volumes) Volumes { return inOtherWords{v} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t, Automatic)
			w.guard.Volumes = reword(w.guard.Volumes)
			w.comesBack(t)
		})
	}
}

// comesBack has the driver die and come back, and waits until the volume is repaired.
func (w *ward) comesBack(t *testing.T) {
	t.Helper()
	c := w.scene.Start()
	w.start(t)
	w.reads(t, c, "old")
	w.scene.Kill()
	w.hearsAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
	w.scene.Remount("new")
	w.hearsAll(t, `repaired DisconnectedFUSE in "": <nil>`, `repaired DisconnectedFUSE in "app": <nil>`)
	w.await(t, "for no fault to be present", func(s Status) bool { return len(s.Present) == 0 })
	w.reads(t, c, "new")
	if got := w.scene.ReadHost(w.scene.Point); got != "new" {
		t.Errorf("on the host: %q", got)
	}
	w.hearsNothingMore(t)
}

func TestAHungVolumeIsToldOfAndLeftAlone(t *testing.T) {
	w := newWard(t, Automatic)
	w.start(t)
	before := w.scene.Mounts()
	w.scene.Stop()
	go w.scene.ReadHost(w.scene.Point) // whoever uses it waits
	w.hearsAll(t, `found HungMount in ""`)
	if after := w.scene.Mounts(); len(after) != len(before) {
		t.Errorf("mounts: %v, and were %v", after, before)
	}
	w.hearsNothingMore(t)
}

// faultyVolumes has every repair fail, and tells when each was tried.
type faultyVolumes struct {
	Volumes
	applied chan time.Time
}

func (f *faultyVolumes) ApplyAll(_ context.Context, actions []fault.Action, each func(int, fault.Applied, error) bool) {
	for i := range actions {
		f.applied <- time.Now()
		if !each(i, fault.Applied{}, errors.New("no luck")) {
			return
		}
	}
}

func TestARepairThatFailsIsTriedLessAndLessOften(t *testing.T) {
	w := newWard(t, Automatic)
	faulty := &faultyVolumes{Volumes: w.scene.Inspector, applied: make(chan time.Time, 1000)}
	w.guard.Volumes = faulty
	w.start(t)
	w.scene.Kill()
	w.hearsAll(t, `found DisconnectedFUSE in ""`)
	w.scene.Remount("new")
	failed := `repaired DisconnectedFUSE in "": no luck`
	w.hearsAll(t, failed, failed, failed)
	first, second, third := <-faulty.applied, <-faulty.applied, <-faulty.applied
	if second.Sub(first) < firstRetryDelay || third.Sub(second) < 2*firstRetryDelay {
		t.Errorf("the second attempt after %s, the third after %s", second.Sub(first), third.Sub(second))
	}
}
