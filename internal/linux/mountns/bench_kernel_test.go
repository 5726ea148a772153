// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/sys"
)

var loads = map[string]load{
	"500 processes, 50 namespaces":   {500, 50},
	"2000 processes, 500 namespaces": {2000, 500},
}

// grep is what people do today.
func grep() error {
	err := exec.Command("sh", "-c", "grep -l '//deleted ' /proc/*/task/*/mountinfo >/dev/null 2>&1").Run()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return nil // processes that ended meanwhile
	}
	return err
}

// median runs fn n times and gives the middle duration.
func median(n int, fn func() error) (time.Duration, error) {
	var took []time.Duration
	for range n {
		start := time.Now()
		if err := fn(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// BenchmarkDeleted compares a pass over the machine with grep over every task,
// on the same load in the same run. The numbers that count are the ratios.
func BenchmarkDeleted(b *testing.B) {
	for name, load := range loads {
		b.Run(name, func(b *testing.B) {
			load.start(b)
			warm := NewScanner()
			found, survey, err := warm.Deleted()
			must(b, err)
			if len(found) < load.namespaces/10 {
				b.Fatalf("%d found, %d made; %+v", len(found), load.namespaces/10, survey)
			}
			for range b.N {
				compare(b, map[string]func() error{
					"cold": func() error { _, _, err := NewScanner().Deleted(); return err },
					"warm": func() error { _, _, err := warm.Deleted(); return err },
					"procfs": func() error {
						_, _, err := (&Scanner{back: &procScan{}}).Deleted()
						return err
					},
				})
			}
			b.ReportMetric(float64(survey.Mounts), "mounts")
		})
	}
}

// compare reports how long grep takes, and how many times faster each other
// way is.
func compare(b *testing.B, ways map[string]func() error) {
	b.Helper()
	baseline, err := median(3, grep)
	must(b, err)
	b.ReportMetric(float64(baseline.Microseconds())/1000, "ms-grep")
	for name, way := range ways {
		took, err := median(7, way)
		must(b, err)
		b.ReportMetric(float64(took.Microseconds())/1000, "ms-"+name)
		b.ReportMetric(float64(baseline)/float64(took), "x-"+name)
	}
}

// BenchmarkBystander measures what a bind mount and unmount take, as container
// starts do them, while another core does nothing, greps, or passes over the
// machine again and again.
func BenchmarkBystander(b *testing.B) {
	loads["500 processes, 50 namespaces"].start(b)
	dir := b.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	must(b, touch(source))
	must(b, touch(target))
	warm := NewScanner()
	for range b.N {
		took := map[string]time.Duration{}
		for name, beside := range map[string]func() error{
			"idle": func() error { time.Sleep(time.Millisecond); return nil },
			"grep": grep,
			"warm": func() error { _, _, err := warm.Deleted(); return err },
			"cold": func() error { _, _, err := NewScanner().Deleted(); return err },
		} {
			took[name] = disturbed(b, beside, func() error {
				if err := sys.BindMount(source, target); err != nil {
					return err
				}
				return sys.UnmountPath(target, false)
			})
			b.ReportMetric(float64(took[name].Nanoseconds())/1000, "us-beside-"+name)
		}
		b.ReportMetric(float64(took["grep"])/float64(took["warm"]), "x-warm")
		b.ReportMetric(float64(took["grep"])/float64(took["cold"]), "x-cold")
	}
}

// disturbed is the median of act while beside runs in a loop. Act comes every
// two milliseconds, as work does that others hand out: done again and again as
// fast as it goes, it would mostly be measured while nothing disturbs it.
func disturbed(b *testing.B, beside, act func() error) time.Duration {
	b.Helper()
	var done atomic.Bool
	stopped := make(chan error)
	go func() {
		for !done.Load() {
			if err := beside(); err != nil {
				stopped <- err
				return
			}
		}
		stopped <- nil
	}()
	var took []time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 2000 {
		<-tick.C
		start := time.Now()
		must(b, act())
		took = append(took, time.Since(start))
	}
	done.Store(true)
	must(b, <-stopped)
	slices.Sort(took)
	return took[len(took)/2]
}
