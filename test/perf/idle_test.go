// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/program"
)

const (
	// settling is how long it is waited after the start, when everything is looked at for the first time. Work that is
	// due every five or ten minutes is in the figure only if -benchtime lasts that long.
	settling = 45 * time.Second
	idle     = time.Minute
)

// BenchmarkIdleAgent measures the cost of an agent while nothing happens on a node of 250 pods and 1,500 subPath binds, by
// the mode of its sentinel: the time of processors, as part of one processor, and memory.
func BenchmarkIdleAgent(b *testing.B) {
	n := newNode(b)
	for _, mode := range []string{"Off", "Observe", "Automatic"} {
		binds := nodeBinds
		if mode == "Off" {
			binds = 0
		}
		b.Run(mode, func(b *testing.B) {
			n.agent = n.LaunchAgentBeside(b, mode)
			defer program.End(n.agent.Cmd)
			n.agent.Await(b, "the sentinel to see the binds", func(m map[string]float64) bool {
				return m["kubediag_sentinel_binds"] == float64(binds) && m["kubediag_sentinel_unwatched_binds"] == 0
			})
			<-time.After(settling)
			pid := n.agent.Process.Pid
			var spent, elapsed time.Duration
			for b.Loop() {
				before, begin := cpuTime(b, pid), time.Now()
				time.Sleep(idle)
				elapsed += time.Since(begin)
				spent += cpuTime(b, pid) - before
			}
			b.ReportMetric(100*float64(spent)/float64(elapsed), "%-of-a-core")
			b.ReportMetric(resident(b, pid), "MiB-resident")
		})
	}
}

// cpuTime is the time of the process' own clock: the time that all its threads had a processor, also those that have ended,
// in nanoseconds. Its number is that of clock_getcpuclockid(3).
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	const scheduled = 2
	var t unix.Timespec
	must(b, unix.ClockGettime(int32(^pid<<3|scheduled), &t))
	return time.Duration(t.Nano())
}
