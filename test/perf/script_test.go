// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/sys/systest"
	"kubediag.org/kubediag/test/fakenode"
)

const (
	scriptUpdates = 200
	scriptTime    = 10 * time.Second // in which they happen
)

// script is the workaround of people who have no sentinel: once a second it looks for deleted sources in the mount table,
// and unmounts their mounts.
type script struct {
	mu    sync.Mutex
	begun map[string]time.Time // when the binds were broken that are still mounted, by point
	took  []time.Duration
}

// runScript renews volumes of one bind each, and gives for each how long it took until the script had unmounted it.
func runScript(b *testing.B, volumes []*fakenode.Volume) []time.Duration {
	b.Helper()
	s := script{begun: map[string]time.Time{}}
	ended := make(chan error)
	go func() { ended <- s.unmountAll(len(volumes)) }()
	for _, v := range volumes {
		must(b, v.Prepare())
		time.Sleep(rand.N(2 * scriptTime / scriptUpdates))
		s.mu.Lock()
		s.begun[v.Points[0]] = time.Now()
		s.mu.Unlock()
		must(b, v.Renew())
	}
	must(b, <-ended)
	for _, v := range volumes {
		must(b, v.Bind())
	}
	return s.took
}

// unmountAll runs until the script has unmounted as many binds.
func (s *script) unmountAll(binds int) error {
	for tick, end := time.Tick(time.Second), time.Now().Add(time.Minute); len(s.took) < binds; <-tick {
		if time.Now().After(end) {
			return errors.New("the script has not found every stale bind")
		}
		if err := s.unmount(); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) unmount() error {
	table, err := mountns.Table(0)
	if err != nil {
		return err
	}
	for _, m := range table.Mounts() {
		s.mu.Lock()
		begun, ours := s.begun[m.Point]
		s.mu.Unlock()
		if !ours || !m.Deleted() {
			continue
		}
		if err := systest.UnmountPath(m.Point, true); err != nil {
			return err
		}
		s.took = append(s.took, time.Since(begun))
	}
	return nil
}
