// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package mountns

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
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
						_, _, err := (&Scanner{back: newProcScan(standard), limits: standard}).Deleted()
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

// besides is what another process does again and again while mounts are made.
var besides = map[string]func() error{
	"idle": func() error { <-time.After(time.Millisecond); return nil },
	"grep": grep,
	"cold": func() error { _, _, err := NewScanner().Deleted(); return err },
	"warm": func() error { _, _, err := warmScanner.Deleted(); return err },
}

var warmScanner = NewScanner()

// besideRole does one of them until the test wants no more, and is ready when
// it has done it once.
func besideRole(args []string, ready func(string)) error {
	var done atomic.Bool
	go func() {
		kerneltest.WaitForEnd()
		done.Store(true)
	}()
	again := besides[args[0]]
	if err := again(); err != nil {
		return err
	}
	for ready(""); !done.Load(); {
		if err := again(); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkBystander measures what a bind mount and unmount take, as container
// starts do them, while another process does nothing, greps, or passes over the
// machine again and again. They take turns, so that what else the machine does
// meets all of them.
func BenchmarkBystander(b *testing.B) {
	loads["500 processes, 50 namespaces"].start(b)
	dir := b.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	must(b, touch(source))
	must(b, touch(target))
	act := func() error {
		if err := sys.BindMount(source, target); err != nil {
			return err
		}
		return sys.UnmountPath(target, false)
	}
	took := map[string][]time.Duration{}
	for range 5 * b.N {
		for name := range besides {
			took[name] = append(took[name], disturbed(b, name, act)...)
		}
	}
	median := func(name string) float64 {
		slices.Sort(took[name])
		return float64(took[name][len(took[name])/2])
	}
	for name := range besides {
		b.ReportMetric(median(name)/1000, "us-beside-"+name)
	}
	b.ReportMetric(median("grep")/median("warm"), "x-warm")
	b.ReportMetric(median("grep")/median("cold"), "x-cold")
}

// disturbed is how long act takes each time while the other process works. Act
// comes every two milliseconds, as work does that others hand out: done again
// and again as fast as it goes, it would mostly be measured while nothing
// disturbs it.
func disturbed(b *testing.B, beside string, act func() error) []time.Duration {
	b.Helper()
	other := kerneltest.StartWith(b, nil, "beside", beside)
	defer other.End()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took []time.Duration
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 400 {
		<-tick.C
		start := time.Now()
		must(b, act())
		took = append(took, time.Since(start))
	}
	return took
}
