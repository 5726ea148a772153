// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package sentinel

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/kubelet/kubelettest"
	"kubediag.org/kubediag/internal/linux/filelock"
)

// testGuard is a Guard whose answers a test changes.
type testGuard struct {
	mu       sync.Mutex
	mode     Mode
	budget   int
	ended    []string
	channels []chan struct{}
}

func (g *testGuard) set(mode Mode, budget int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mode, g.budget = mode, budget
	for _, c := range g.channels {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (g *testGuard) Mode(fault.Code, *corev1.Pod) Mode {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mode
}

func (g *testGuard) Acquire(_ context.Context, f fault.Finding, pod *corev1.Pod) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mode != Automatic || g.budget == 0 || f.Pod.UID != string(pod.UID) || f.Mount.Point == "" || f.Volume == "" {
		return false
	}
	g.budget--
	return true
}

func (g *testGuard) Ended(key fault.Key, _ fault.Pod, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, fmt.Sprintf("%s in %s: %v", key.Code, key.Container, err))
}

func (g *testGuard) Subscribe() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{}, 1)
	g.channels = append(g.channels, c)
	return c
}

// TestGuardDecidesAboutBinds: as long as the guard refuses, a stale bind is reported and stays. When it allows the repair, the bind
// is replaced at once, also if another process paused repairs before.
func TestGuardDecidesAboutBinds(t *testing.T) {
	f := newBindFixture(t, Observe)
	g := &testGuard{mode: Observe}
	f.sentinel.Guard = g
	f.start(t)
	f.updateConfigMap()
	f.expect(t, "found StaleSubPath in app of web at 0")
	before := f.Mounts()
	g.set(Automatic, 0)
	f.waitFor(t, "for the fault to stay", func(s Status) bool { return s.Present[fault.StaleSubPath] == 1 })
	g.set(Observe, 1)
	if after := f.Mounts(); len(after) != len(before) {
		t.Errorf("mounts %v, before %v", after, before)
	}
	f.expectNoMore(t)
	start := time.Now()
	g.set(Automatic, 1)
	f.expect(t, "repaired StaleSubPath in app of web: <nil>")
	if took := time.Since(start); took > time.Second {
		t.Errorf("repaired after %s", took)
	}
	f.checkSource(t, f.point, filepath.Join(f.Volume(f.pod, kubelettest.ConfigMap, "configmap"), "key"))
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.ended) != 1 || g.ended[0] != "StaleSubPath in app: <nil>" {
		t.Errorf("ended: %q", g.ended)
	}
}

// TestGuardHidesBinds: a fault of mode Off is not reported, and is when the mode changes.
func TestGuardHidesBinds(t *testing.T) {
	f := newBindFixture(t, Observe)
	g := &testGuard{mode: Off}
	f.sentinel.Guard = g
	f.start(t)
	f.updateConfigMap()
	for until := time.Now().Add(2 * tickInterval); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if faults, _ := f.sentinel.Faults(); len(faults) > 0 || f.sentinel.Status().Present[fault.StaleSubPath] > 0 {
			t.Fatalf("faults %+v", faults)
		}
	}
	f.expectNoMore(t)
	g.set(Observe, 0)
	f.expect(t, "found StaleSubPath in app of web at 0")
}

// TestGuardDecidesAboutVolumes: with a budget of one repair, the other mount waits.
func TestGuardDecidesAboutVolumes(t *testing.T) {
	f := newVolumeFixture(t, Observe)
	g := &testGuard{mode: Automatic, budget: 1}
	f.sentinel.Guard = g
	c := f.scene.Start()
	f.start(t)
	f.scene.Kill()
	f.expectAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
	f.scene.Remount("new")
	f.waitFor(t, "for one repair", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] == 1 })
	<-f.notifications
	f.expectNoMore(t)
	g.set(Automatic, 10)
	f.waitFor(t, "for no fault to be present", func(s Status) bool { return len(s.Present) == 0 })
	f.expectRead(t, c, "new")
}

// testLock is a Lock that another process has until the test frees it. tries receives each try.
type testLock struct {
	tries chan struct{}
	free  atomic.Bool
}

func newTestLock() *testLock { return &testLock{tries: make(chan struct{}, 10000)} }

func (l *testLock) Try() (release func(), err error) {
	l.tries <- struct{}{}
	if !l.free.Load() {
		return nil, filelock.ErrBusy
	}
	return func() {}, nil
}

// TestBusyLockSpendsNoBudget: the lock is tried only if the guard allows repairs. While another process has it, the budget stays.
func TestBusyLockSpendsNoBudget(t *testing.T) {
	check := func(t *testing.T, g *testGuard, l *testLock, s *Sentinel, found, repaired func()) {
		s.Guard, s.Lock = g, l
		found()
		if len(l.tries) > 0 {
			t.Error("the lock was tried although the guard allows no repair")
		}
		g.set(Automatic, 1)
		for range 2 {
			<-l.tries
		}
		g.mu.Lock()
		if g.budget != 1 || len(g.ended) > 0 {
			t.Errorf("budget %d, ended %q", g.budget, g.ended)
		}
		g.mu.Unlock()
		l.free.Store(true)
		repaired()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.budget != 0 || len(g.ended) != 1 {
			t.Errorf("after the repair: budget %d, ended %q", g.budget, g.ended)
		}
	}
	t.Run("bind", func(t *testing.T) {
		f := newBindFixture(t, Observe)
		check(t, &testGuard{mode: Observe}, newTestLock(), f.sentinel, func() {
			f.start(t)
			f.updateConfigMap()
			f.expect(t, "found StaleSubPath in app of web at 0")
		}, func() { f.expect(t, "repaired StaleSubPath in app of web: <nil>") })
	})
	t.Run("volume", func(t *testing.T) {
		f := newVolumeFixture(t, Observe)
		check(t, &testGuard{mode: Observe}, newTestLock(), f.sentinel, func() {
			f.scene.Start()
			f.start(t)
			f.scene.Kill()
			f.expectAll(t, `found DisconnectedFUSE in ""`, `found DisconnectedFUSE in "app"`)
			f.scene.Remount("new")
		}, func() {
			f.waitFor(t, "for one repair", func(s Status) bool { return s.Present[fault.DisconnectedFUSE] == 1 })
		})
	})
}
