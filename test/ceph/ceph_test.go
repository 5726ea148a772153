// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package ceph

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/linux/kerneltest"
)

func TestMain(m *testing.M) { Main(m, kerneltest.Roles{"owner": playOwner}) }

// playOwner is the role of an owner of another cluster, who mounts it and is then killed.
func playOwner(args []string, ready func(string)) error {
	ctx := context.Background() //nolint:forbidigo // a role is no test
	c, err := Start(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Mount(ctx, args[0], MountOptions{}); err != nil {
		return err
	}
	ready(c.Dir())
	kerneltest.WaitForEnd()
	return errors.New("was not killed")
}

func mustMount(t *testing.T, target string, o MountOptions) *Client {
	t.Helper()
	m, err := Shared(t).Mount(t.Context(), target, o)
	must(t, err)
	t.Cleanup(func() {
		if err := m.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestRestartedClientDoesNotWaitForTheDeadOne(t *testing.T) {
	target, bound := t.TempDir(), t.TempDir()
	m := mustMount(t, target, MountOptions{Options: []string{"nonempty"}})
	dir, err := os.MkdirTemp(target, "restart-")
	must(t, err)
	must(t, unix.Mount(dir, bound, "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(bound, unix.MNT_DETACH) }()
	must(t, m.Kill())
	if _, err := os.Stat(target); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("mount of a killed client answers %v", err)
	}
	start := time.Now()
	must(t, m.Restart(t.Context()))
	if err := os.Mkdir(filepath.Join(dir, "b"), 0o755); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("the client was of use only after %s", took)
	}
	if _, err := os.Stat(bound); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("what was bound from the dead mount answers %v", err)
	}
}

func TestFrozenClientAnswersWhenItGoesOn(t *testing.T) {
	target := t.TempDir()
	m := mustMount(t, target, MountOptions{})
	must(t, m.Freeze())
	answer := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(target)
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Errorf("a frozen client answers %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	must(t, m.Thaw())
	if err := <-answer; err != nil {
		t.Error(err)
	}
}

func TestFailingMountSaysWhy(t *testing.T) {
	target := t.TempDir()
	_, err := Shared(t).Mount(t.Context(), target, MountOptions{Root: "/nowhere"})
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("No such file or directory")) {
		t.Errorf("mounted what is not there: %v", err)
	}
}

func TestClusterEndsWithItsOwner(t *testing.T) {
	target := t.TempDir()
	t.Cleanup(func() {
		if err := detach(target); err != nil {
			t.Error(err)
		}
	})
	owner := kerneltest.StartWith(t, nil, "owner", target)
	dir := owner.Answer
	awaitProcesses(t, dir, 4) // a monitor, an OSD, an MDS and a client, which runs mount(8) now and then
	must(t, Sweep())
	if _, err := os.Stat(filepath.Join(dir, "ceph.conf")); err != nil {
		t.Fatalf("a living cluster was swept: %v", err)
	}
	owner.Kill()
	must(t, Sweep())
	awaitProcesses(t, dir, 0)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("folder of a dead cluster is left: %v", err)
	}
}

func TestStartThatFailsLeavesNothing(t *testing.T) {
	before, err := filepath.Glob(filepath.Join(folders, prefix+"*"))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil { // until it has begun
			if now, _ := filepath.Glob(filepath.Join(folders, prefix+"*", "*")); len(now) > 0 && !all(now, before) {
				cancel()
			}
			runtime.Gosched()
		}
	}()
	c, err := Start(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("started %v: %v", c, err)
	}
	if c != nil {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}
	after, err := filepath.Glob(filepath.Join(folders, prefix+"*"))
	if err != nil || len(after) != len(before) {
		t.Errorf("folders before %q, after %q, %v", before, after, err)
	}
}

// all reports whether all of the files lie in one of the folders.
func all(files, in []string) bool {
	return !slices.ContainsFunc(files, func(name string) bool { return !slices.Contains(in, filepath.Dir(name)) })
}

// awaitProcesses waits until a cluster has so many processes.
func awaitProcesses(t *testing.T, dir string, want int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		found := processesOf(t, dir)
		if len(found) == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v of the cluster live, want %d", found, want)
		}
	}
}

// processesOf lists the living processes of a cluster by their environment.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	must(t, err)
	var found []string
	for _, path := range environments {
		text, _ := os.ReadFile(path) // it may have ended
		if bytes.Contains(text, []byte("CEPH_CONF="+dir+"/")) {
			found = append(found, filepath.Base(filepath.Dir(path)))
		}
	}
	return found
}

var must = kerneltest.Must
