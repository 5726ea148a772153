// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubediag.org/kubediag/internal/fault"
	"kubediag.org/kubediag/internal/faults/volume"
	"kubediag.org/kubediag/internal/kubelet"
	"kubediag.org/kubediag/internal/mountstate"
)

// TestHungWatcherIsReportedStuck: the last status stays, and the other watcher reports that it is old.
func TestHungWatcherIsReportedStuck(t *testing.T) {
	for watch, c := range map[string]struct{ moves, hangs func(s *Sentinel) }{
		"binds": {
			func(s *Sentinel) { s.setStatus(fault.SearchVolumes, Status{Watching: true}) },
			func(s *Sentinel) {
				s.setStatus(fault.SearchSubPaths, Status{Watching: true, Present: map[fault.Code]int{fault.StaleSubPath: 1}})
			},
		},
		"volumes": {
			func(s *Sentinel) { s.setStatus(fault.SearchSubPaths, Status{Watching: true}) },
			func(s *Sentinel) {
				s.setStatus(fault.SearchVolumes, Status{Watching: true, Present: map[fault.Code]int{fault.StaleSubPath: 1}})
			},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDeadVolumes(0)
			s := &Sentinel{Mode: Observe, Volumes: d, Observer: d}
			go s.watchdog(t.Context())
			since := time.Now()
			c.hangs(s)
			for _, watching := range []bool{true, false} {
				for time.Since(since) < stuckAfter || !watching && time.Since(since) < 2*stuckAfter {
					c.moves(s)
					time.Sleep(tickInterval)
				}
				if now := s.Status(); now.Watching != watching || now.Present[fault.StaleSubPath] != 1 {
					t.Errorf("%s hang for %s: %+v", watch, time.Since(since), now)
				}
			}
			why := s.Status().Stuck
			if !strings.Contains(why, "over "+watch) || !strings.Contains(why, since.UTC().Format(time.RFC3339)) {
				t.Errorf("%s hang since %s: %q", watch, since, why)
			}
			if len(d.trouble) != 1 || d.trouble[0] != why {
				t.Errorf("%s hang, and reported: %q", watch, d.trouble)
			}
			if c.hangs(s); !s.Status().Watching {
				t.Errorf("%s go on: %+v", watch, s.Status())
			}
		})
	}
}

// fixedKubelet always finds the same kubelet at once.
type fixedKubelet struct{ node kubelet.Node }

func (k *fixedKubelet) Node(context.Context) (*kubelet.Node, error) { return &k.node, nil }

// slowVolumes delays each inspection.
type slowVolumes struct {
	*deadVolumes
	delay func()
}

func (s *slowVolumes) Inspect(ctx context.Context, of mountstate.Scope) (*volume.Survey, error) {
	s.delay()
	return s.deadVolumes.Inspect(ctx, of)
}

// TestSlowWorkIsNotStuck: a watcher is not stuck while scans and repairs follow one another.
func TestSlowWorkIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadVolumes(1)
		watcher, times := d.watcher(), 0
		long := func() {
			time.Sleep(stuckAfter - tickInterval)
			if times++; watcher.sentinel.Status().Stuck != "" {
				t.Errorf("at the end of scan or repair %d: %s", times, watcher.sentinel.Status().Stuck)
			}
		}
		watcher.sentinel.Volumes = &slowVolumes{d, long}
		d.repair = func(fault.Action) error {
			long()
			d.volumes[0].Evidence.Mount.Unique++ // the new mount is dead, too
			return nil
		}
		watcher.reportStatus(true)
		if err := watcher.scan(t.Context()); err != nil || times != 2*maxConsecutiveScans {
			t.Errorf("%d scans and repairs, %v, want %d", times, err, 2*maxConsecutiveScans)
		}
	})
}
