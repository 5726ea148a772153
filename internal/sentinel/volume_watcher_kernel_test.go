// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume/volumetest"
	"kubediag.org/kubediag/internal/linux/fuse"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// volumeFixture is a node with one pod and a sentinel. The pod's container app has a volume of a CSI driver.
type volumeFixture struct {
	*bindFixture
	scene *volumetest.Scene
}

func newVolumeFixture(t *testing.T, mode Mode) *volumeFixture {
	t.Helper()
	scene := volumetest.New(t)
	scene.Renews(true)
	connections, err := fuse.Open()
	must(t, err)
	t.Cleanup(func() { must(t, connections.Close()) })
	f := &volumeFixture{bindFixture: &bindFixture{notifications: make(chan string, 10000)}, scene: scene}
	f.sentinel = &Sentinel{
		Mode: mode, Guard: always{mode}, Kubelet: scene.Node, Pods: scene, Observer: f, Volumes: scene.Inspector, Connections: connections,
	}
	return f
}

// Found and Repaired record the container of the mount.
func (f *volumeFixture) Found(finding fault.Finding, _ time.Duration) {
	f.notifications <- fmt.Sprintf("found %s in %q", finding.Code, finding.Container)
}

func (f *volumeFixture) Repaired(r Repair) {
	f.repaired = append(f.repaired, r)
	f.notifications <- fmt.Sprintf("repaired %s in %q: %v", r.Fault.Code, r.Fault.Container, r.Err)
}

func (f *volumeFixture) start(t *testing.T) {
	t.Helper()
	f.launch(t)
	f.waitFor(t, "to see the connection", func(s Status) bool { return s.Watching && s.Connections == 1 })
}

// launch does not wait until the sentinel watches.
func (f *volumeFixture) launch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.sentinel.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
}

// expectAll waits for all notifications, in any order.
func (f *volumeFixture) expectAll(t *testing.T, want ...string) {
	t.Helper()
	missing := map[string]int{}
	for _, text := range want {
		missing[text]++
	}
	for range want {
		select {
		case got := <-f.notifications:
			if missing[got]--; missing[got] < 0 {
				t.Fatalf("got notification %q, want %q", got, want)
			}
		case <-time.After(waitLimit):
			t.Fatalf("missing notifications: %v", missing)
		}
	}
}

func (f *volumeFixture) expectRead(t *testing.T, c *kerneltest.Actor, want string) {
	t.Helper()
	if got := f.scene.Read(c); got != want {
		t.Errorf("the container reads %q, want %q", got, want)
	}
}

func TestObserveReportsDeadVolume(t *testing.T) {
	f := newVolumeFixture(t, Observe)
	c := f.scene.Start()
	f.start(t)
	f.scene.Kill()
	f.expectAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
	f.waitFor(t, "for both to be present", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] == 2 })
	before := f.scene.MountsOf(c.PID)
	f.scene.Remount("new")
	f.waitFor(t, "for the new connection", func(s Status) bool { return s.Connections == 2 })
	if after := f.scene.MountsOf(c.PID); len(after) != len(before) {
		t.Errorf("mounts of the container: %v, want %v", after, before)
	}
	f.expectNoMore(t)
	c.End()
	f.waitFor(t, "for the container's to be gone", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] < 2 })
}

func TestAutomaticRepairsAfterDriverRestart(t *testing.T) {
	for name, reword := range map[string]func(Volumes) Volumes{
		"as it is":       func(v Volumes) Volumes { return v },
		"in other words": func(v Volumes) Volumes { return rewordedVolumes{v} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newVolumeFixture(t, Automatic)
			f.sentinel.Volumes = reword(f.sentinel.Volumes)
			f.checkDriverRestart(t)
		})
	}
}

// checkDriverRestart restarts the driver, and waits until the volume is repaired.
func (f *volumeFixture) checkDriverRestart(t *testing.T) {
	t.Helper()
	c := f.scene.Start()
	f.start(t)
	f.expectRead(t, c, "old")
	f.scene.Kill()
	f.expectAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
	f.scene.Remount("new")
	f.expectAll(t, `repaired DisconnectedFUSE in "": <nil>`, `repaired DisconnectedFUSE in "app": <nil>`)
	f.waitFor(t, "for no fault to be present", func(s Status) bool { return len(s.Present) == 0 })
	f.expectRead(t, c, "new")
	if got := f.scene.ReadHost(f.scene.Point); got != "new" {
		t.Errorf("on the host: %q", got)
	}
	f.expectNoMore(t)
	for _, r := range f.repaired { // the calls were made by processes of their own
		var names []string
		for _, c := range r.Calls {
			names = append(names, c.Name)
		}
		if !slices.Contains(names, "move_mount") || !slices.Contains(names, "umount2") || r.Action.Kind != fault.Replace || r.Proof == "" {
			t.Errorf("repair %+v", r)
		}
	}
}

func TestHungVolumeIsOnlyReported(t *testing.T) {
	f := newVolumeFixture(t, Automatic)
	f.start(t)
	before := f.scene.Mounts()
	f.scene.Stop()
	go f.scene.ReadHost(f.scene.Point) // every process that uses it waits
	f.expectAll(t, `found HungMount in ""`)
	if after := f.scene.Mounts(); len(after) != len(before) {
		t.Errorf("mounts: %v, want %v", after, before)
	}
	f.expectNoMore(t)
}

// failingVolumes fails every repair, and records the time of each.
type failingVolumes struct {
	Volumes
	applied chan time.Time
}

func (f *failingVolumes) Open(...string) func(context.Context, fault.Action) (fault.Applied, error) {
	return func(context.Context, fault.Action) (fault.Applied, error) {
		f.applied <- time.Now()
		return fault.Applied{}, errors.New("no luck")
	}
}

func TestFailedRepairBacksOff(t *testing.T) {
	f := newVolumeFixture(t, Automatic)
	faulty := &failingVolumes{Volumes: f.scene.Inspector, applied: make(chan time.Time, 1000)}
	f.sentinel.Volumes = faulty
	f.start(t)
	f.scene.Kill()
	f.expectAll(t, `found DisconnectedFUSE in ""`)
	f.scene.Remount("new")
	failed := `repaired DisconnectedFUSE in "": no luck`
	f.expectAll(t, failed, failed, failed)
	first, second, third := <-faulty.applied, <-faulty.applied, <-faulty.applied
	if second.Sub(first) < firstRetryDelay || third.Sub(second) < 2*firstRetryDelay {
		t.Errorf("the second attempt after %s, the third after %s", second.Sub(first), third.Sub(second))
	}
}
