// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build ceph

package states_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/test/ceph"
	"kubediag.org/kubediag/test/ceph/states"
)

const podUID = "6b1f3a52-0d5e-4f0e-9c61-3f2f0a7c1d10"

func TestMain(m *testing.M) {
	subprocess.Main(probe.Job, volume.Job, volume.CommandLinesJob)
	ceph.Main(m, nil)
}

// each builds each state at a place of its own.
func each(t *testing.T, test func(t *testing.T, s states.State, p *states.Place)) {
	t.Helper()
	c := ceph.Shared(t)
	for _, s := range states.All() {
		t.Run(s.Name, func(t *testing.T) {
			p := states.New(t, c, t.TempDir(), podUID, s.Below)
			s.Build(t, p)
			test(t, s.Met(t, p), p)
		})
	}
}

func TestKernelSaysWhatTheTableSays(t *testing.T) {
	each(t, func(t *testing.T, s states.State, p *states.Place) {
		before := p.Line(t)
		if got := p.Marked(t); got != s.Deleted {
			t.Errorf("marked as deleted: %v", got)
		}
		if s.Life == states.Hung {
			hangs(t, p)
			return
		}
		if got := life(t, p.Target); got != s.Life {
			t.Errorf("life is %v, want %v", got, s.Life)
		}
		if got := p.Bindable(t); got != s.Bindable {
			t.Errorf("can be bound: %v", got)
		}
		if after := p.Line(t); after != before {
			t.Errorf("looking has changed %q to %q", before, after)
		}
		on, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(p.Staging))
		if got := len(on) == 1 && life(t, p.Staging) == states.Alive; err != nil || got != s.Staged {
			t.Errorf("staging path answers: %v, %v", got, err)
		}
	})
}

// life asks a folder. The kernel itself says of a removed folder that there is nothing to list.
func life(t *testing.T, dir string) states.Life {
	t.Helper()
	_, err := os.ReadDir(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return states.Alive
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ESHUTDOWN):
		return states.Dead
	}
	t.Fatal(err)
	return 0
}

// hangs checks that Target does not answer until the server is dead.
func hangs(t *testing.T, p *states.Place) {
	t.Helper()
	answer := make(chan error, 1)
	go func() {
		_, err := os.Stat(p.Target)
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("a frozen file system answers %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, p.Client.Kill())
	if err := <-answer; err == nil {
		t.Error("a killed file system answers")
	}
}

func TestFreshDataIsThereAfterTheDriverHasCome(t *testing.T) {
	each(t, func(t *testing.T, s states.State, p *states.Place) {
		before := p.Line(t)
		p.Restage(t)
		if got, err := os.ReadFile(filepath.Join(p.Staging, p.Below, states.Data)); err != nil || string(got) != states.Fresh {
			t.Errorf("%q at the staging path, %v", got, err)
		}
		if s.Code == "" {
			return
		}
		if got, err := os.ReadFile(filepath.Join(p.Target, states.Data)); err == nil && string(got) == states.Fresh {
			t.Error("the pod's volume has recovered by itself")
		}
		if got, want := mountID(p.Line(t)), mountID(before); got != want {
			t.Errorf("mount %s has taken the place of %s", got, want)
		}
	})
}

// mountID is the first field of a line of mountinfo.
func mountID(line string) string {
	id, _, _ := strings.Cut(line, " ")
	return id
}

var must = kerneltest.Must
