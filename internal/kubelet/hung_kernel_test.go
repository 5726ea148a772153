// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/bounded"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/hung"
)

// expectWithin fails the test where fn takes longer than a search may.
func (c *processCalls) expectWithin(t *testing.T, what string, fn func()) {
	t.Helper()
	begin := time.Now()
	fn()
	if took := time.Since(begin); took > kerneltest.Patience(4*SearchTimeout+20*time.Second) {
		t.Errorf("%s took %v", what, took)
	}
}

// countWaiting is how many threads wait for processes that may be kubelets.
func (c *processCalls) countWaiting() int { return c.host.Abandoned() + c.others.Abandoned() }

// awaitNoThreads waits until no thread waits any more.
func awaitNoThreads(t *testing.T, left func() int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); left() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads wait still", left())
		}
	}
}

// TestArgumentsThatDoNotAnswer: processes with the name of a kubelet, one whose arguments lie in a file, and one whose
// memory is locked as it waits for that, do not hide the kubelet. The search names them, and a thread waits for each,
// once.
func TestArgumentsThatDoNotAnswer(t *testing.T) {
	const pod = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
	hung.TakeTurn(t)
	base := t.TempDir()
	server := kerneltest.FUSE(t, base)
	file := filepath.Join(base, "stuck")
	mapped := kerneltest.StartWith(t, nil, "hung", "arguments", file)
	locked := kerneltest.StartWith(t, nil, "hung", "memory", file)
	t.Cleanup(server.Kill) // first of all, so that nothing is left that waits
	kerneltest.AwaitLocked(t, locked.PID)
	root, pid := startKubelet(t, pod)
	f := Finder{PodUID: pod, Hosts: hostsFileOf(root, pid, pod)}
	f.calls.expectWithin(t, "the search", func() {
		if n, err := f.Node(t.Context()); err != nil || n.PID != pid {
			t.Errorf("found %+v, %v; want process %d", n, err, pid)
		}
	})
	waiting := f.calls.countWaiting()
	if waiting < 1 || waiting > 2 { // the mapped one only before 4.17
		t.Errorf("%d threads wait", waiting)
	}
	f.PodUID, f.found = "6f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a11", nil
	f.calls.expectWithin(t, "another search", func() {
		_, err := f.Node(t.Context())
		for _, actor := range []*kerneltest.Actor{mapped, locked} {
			if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), fmt.Sprintf("process %d (", actor.PID)) {
				t.Errorf("error %v does not name process %d", err, actor.PID)
			}
		}
	})
	if n := f.calls.countWaiting(); n != waiting {
		t.Errorf("%d threads wait after another search, and before %d", n, waiting)
	}
	shell := Finder{Root: t.TempDir()}
	shell.calls.expectWithin(t, "the search of a shell", func() {
		choice, err := shell.NodeOrLocal(t.Context())
		if err != nil || len(choice.Silent) != waiting {
			t.Errorf("silent %q, %v; want those that are waited for", choice.Silent, err)
		}
	})
	server.Kill()
	awaitNoThreads(t, f.calls.countWaiting)
	awaitNoThreads(t, shell.calls.countWaiting)
}

// TestFilesOfTheKubeletThatDoNotAnswer: its configuration, and the directory of its pods' logs, of which the mount
// table does not show that they lie on a file system that hangs.
func TestFilesOfTheKubeletThatDoNotAnswer(t *testing.T) {
	const pod = "5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10"
	base, logs := t.TempDir(), t.TempDir()
	server := kerneltest.FUSE(t, base)
	over, empty := filepath.Join(logs, "pods"), t.TempDir()
	if err := errors.Join(os.Mkdir(over, 0o755), sys.NewMount("over", over, "overlay", "lowerdir="+base+":"+empty),
		sys.BindMount(logs, "/var/log"), sys.BindMount(over, "/var/log/pods")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, point := range []string{"/var/log/pods", "/var/log", over} {
			_ = systest.UnmountPath(point, true)
		}
	})
	dir := t.TempDir()
	actor := kerneltest.Start(t, "kubelet", "--root-dir="+dir, dir, pod, "--config="+filepath.Join(over, "dir", "config"))
	node, err := (&Finder{PID: actor.PID}).Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(base, "mute")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for i, want := range []error{bounded.ErrLeft, bounded.ErrWaiting} {
		for what, read := range map[string]func(context.Context) error{
			"container runtime": func(ctx context.Context) error { _, err := node.RuntimeSocket(ctx); return err },
			`"/var/log/pods"`:   func(ctx context.Context) error { _, err := node.PodNames(ctx); return err },
			"root \"" + over + "\"": func(ctx context.Context) error {
				_, err := (&Finder{Root: over + "/dir/kubelet"}).NodeOrLocal(ctx)
				return err
			},
		} {
			(&processCalls{}).expectWithin(t, what, func() {
				if err := read(t.Context()); !errors.Is(err, want) {
					t.Errorf("%s, try %d: %v, want %v", what, i, err, want)
				}
			})
		}
	}
	if n := lookupCalls.Abandoned(); n != 3 {
		t.Errorf("%d threads wait, want one for each", n)
	}
	server.Kill()
	awaitNoThreads(t, lookupCalls.Abandoned)
}
