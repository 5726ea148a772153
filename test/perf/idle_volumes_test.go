// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubediag.org/kubediag/test/fakenode"
)

// BenchmarkIdleVolumes measures what an agent in mode Automatic costs while nothing happens on a node of 250 pods, by the
// number of FUSE connections that they have: the time of processors, as part of one processor, of the agent and of the
// processes that it starts; memory; what one look at all volumes takes, which it has every 30 seconds or, where they are
// many or none, more rarely; and how many processes it had at once for that, and threads in them.
func BenchmarkIdleVolumes(b *testing.B) {
	for _, connections := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint("connections=", connections), func(b *testing.B) {
			s := fakenode.New(b)
			s.Build(b, "agent", "")
			shares := s.AddShares(b, fakenode.Shares{Name: "idle", Volumes: connections, Pods: nodePods, Servers: 10})
			agent := s.LaunchAgentBeside(b, "Automatic")
			agent.Await(b, "the sentinel to see the connections", func(m map[string]float64) bool {
				return m["kubediag_sentinel_watching"] == 1 && m["kubediag_sentinel_connections"] == float64(connections)
			})
			<-time.After(settling)
			pid := agent.Process.Pid
			count := countChildren(pid)
			var own, others time.Duration
			rounds := 0
			for ; b.Loop(); rounds++ {
				o, c := spent(b, pid, idle)
				own, others = own+o, others+c
			}
			elapsed := time.Duration(rounds) * idle
			b.ReportMetric(100*float64(own+others)/float64(elapsed), "%-of-a-core")
			b.ReportMetric(100*float64(others)/float64(elapsed), "%-in-children")
			b.ReportMetric(resident(b, pid), "MiB-resident")
			if connections > 0 {
				look := look(b, pid, shares[0].Points[0]) - (own+others)*looking/elapsed
				b.ReportMetric(milliseconds(look), "ms-of-a-look")
			}
			processes, threads := count()
			b.ReportMetric(float64(processes), "children")
			b.ReportMetric(float64(threads), "threads-of-children")
		})
	}
}

// looking is how long one look lasts at most.
const looking = 15 * time.Second

// look has the agent look at all volumes, as it does when their mounts change, and returns what it spent meanwhile.
func look(b *testing.B, pid int, point string) time.Duration {
	b.Helper()
	must(b, unix.Mount(point, point, "", unix.MS_BIND, ""))
	own, others := spent(b, pid, looking)
	must(b, unix.Unmount(point, unix.MNT_DETACH))
	return own + others
}

// spent is the time that a process and its children had a processor within a period.
func spent(b *testing.B, pid int, period time.Duration) (own, children time.Duration) {
	b.Helper()
	own, children = cpuTime(b, pid), childrenTime(b, pid)
	<-time.After(period)
	return cpuTime(b, pid) - own, childrenTime(b, pid) - children
}

// childrenTime is the time that children of the process which have ended had a processor, to 10 ms, see proc_pid_stat(5).
func childrenTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	const user, system, tick = 16 - 3, 17 - 3, 10 * time.Millisecond // the fields begin with the third
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var sum time.Duration
	for _, i := range []int{user, system} {
		n, err := strconv.Atoi(fields[i])
		must(b, err)
		sum += time.Duration(n) * tick
	}
	return sum
}

// countChildren looks every few milliseconds how many children a process has and how many threads these have, until it is
// asked for the most of both.
func countChildren(pid int) (most func() (processes, threads int)) {
	stop, done := make(chan struct{}), make(chan struct{})
	var processes, threads int
	go func() {
		defer close(done)
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			p, n := childrenOf(pid)
			processes, threads = max(processes, p), max(threads, n)
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int, int) {
		close(stop)
		<-done
		return processes, threads
	}
}

func childrenOf(pid int) (processes, threads int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // that thread may have ended
		for _, child := range strings.Fields(string(text)) {
			all, _ := os.ReadDir(filepath.Join("/proc", child, "task"))
			processes++
			threads += len(all)
		}
	}
	return processes, threads
}
