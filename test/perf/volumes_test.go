// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"kubediag.org/kubediag/test/fakenode"
)

const (
	kills          = 50 // of daemons, in each run
	sharePods      = 50
	shareCount     = 10
	podsPer        = sharePods / shareCount
	hungShares     = 5
	glanceAtPod    = 2 * time.Millisecond // between two looks at what a pod reads, and at the metrics
	repairDeadline = 5 * time.Minute      // at most, of the mounts of one volume
)

// faultsOf is the metric that counts the faults of a code.
func faultsOf(code string) string { return `kubediag_faults{code="` + code + `"}` }

var (
	disconnected = faultsOf("DisconnectedFUSE")
	hung         = faultsOf("HungMount")
)

// coast is a node whose pods have volumes of a CSI driver.
type coast struct {
	*fakenode.Node
	shares []*fakenode.Share
	agent  *fakenode.Agent
	events chan podEvent
	turn   int
}

// podEvent is a fault of a pod, by the UID, that an Event has told of.
type podEvent struct {
	pod, reason string
	at          time.Time
}

func newCoast(b *testing.B, mode string) *coast {
	b.Helper()
	c := &coast{Node: fakenode.New(b), events: make(chan podEvent, 10000)}
	c.Build(b, "agent", "")
	c.shares = c.AddShares(b, fakenode.Shares{Name: "share", Volumes: shareCount, Pods: sharePods, Servers: shareCount})
	c.listen(b)
	c.agent = c.LaunchAgent(b, mode)
	c.agent.Await(b, "the sentinel to see the connections", func(m map[string]float64) bool {
		return m["kubediag_sentinel_watching"] == 1 && m["kubediag_sentinel_connections"] == shareCount
	})
	return c
}

// listen takes in the Events of pods.
func (c *coast) listen(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	watch, err := c.Watch(ctx, &corev1.EventList{}, client.InNamespace("default"))
	must(b, err)
	var done sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		watch.Stop()
		done.Wait()
	})
	done.Go(func() {
		for heard := range watch.ResultChan() {
			if e, ok := heard.Object.(*corev1.Event); ok {
				c.events <- podEvent{pod: string(e.InvolvedObject.UID), reason: e.Reason, at: time.Now()}
			}
		}
	})
}

// figures are how long it took.
type figures struct {
	metric, event []time.Duration // until it was told of, from the kill
	pod, all      []time.Duration // until one pod's mount, on the host or in its container, was repaired, from the remount, and until all were
}

// BenchmarkVolumes measures, on a node with 50 pods and 10 FUSE connections of a CSI driver, how long it takes from the
// SIGKILL of a connection's daemon until all its mounts, on the host and in the containers, are among the agent's faults,
// and until the first Event reports it; and from the driver's remount at the staging path until a pod reads the volume
// again at its place on the host or in its container, and until all do. Then the same while half the connections hang,
// and right after they have begun to.
func BenchmarkVolumes(b *testing.B) {
	c := newCoast(b, "Automatic")
	b.Run("hung=0", func(b *testing.B) { c.measure(b, kills, c.shares, alone) })
	halt, others := c.shares[:hungShares], c.shares[hungShares:]
	b.Run(fmt.Sprint("hung=", hungShares), func(b *testing.B) {
		release := c.halt(b, halt)
		c.measure(b, kills/2, others, alone)
		release()
	})
	b.Run(fmt.Sprint("hanging=", hungShares), func(b *testing.B) {
		c.measure(b, kills/5, others, func(kill func()) {
			release := c.halt(b, halt)
			kill()
			release()
		})
	})
}

// measure kills the daemons of shares in turn, n times, each time amid what there is.
func (c *coast) measure(b *testing.B, n int, shares []*fakenode.Share, amid func(kill func())) {
	b.Helper()
	var f figures
	for b.Loop() {
		for range n {
			amid(func() { c.once(b, shares[c.turn%len(shares)], &f) })
			c.turn++
		}
	}
	for name, took := range map[string][]time.Duration{
		"to-metric": f.metric, "to-event": f.event, "repaired": f.pod, "all-repaired": f.all,
	} {
		for _, p := range []int{50, 99} {
			b.ReportMetric(milliseconds(percentile(took, p)), fmt.Sprint("ms-", name, "-p", p))
		}
	}
}

func alone(kill func()) { kill() }

// once kills the daemon of a share, waits for the metric and an Event, and has the driver mount it again.
func (c *coast) once(b *testing.B, v *fakenode.Share, f *figures) {
	b.Helper()
	begin := c.kill(b, v, f)
	f.event = append(f.event, c.heard(b, v).Sub(begin))
	c.remount(b, v, f)
}

// kill kills the daemon of a share, and waits until all its mounts are among the agent's faults.
func (c *coast) kill(b *testing.B, v *fakenode.Share, f *figures) (begin time.Time) {
	b.Helper()
	pause() // not in step with the agent
	for len(c.events) > 0 {
		<-c.events
	}
	begin = time.Now()
	v.Kill(b)
	c.agent.AwaitClosely(b, 5*time.Millisecond, "all mounts to be told of", func(m map[string]float64) bool {
		return m[disconnected] == 2*podsPer
	})
	f.metric = append(f.metric, time.Since(begin))
	return begin
}

// remount has the driver mount a share again, and waits until all its mounts are repaired.
func (c *coast) remount(b *testing.B, v *fakenode.Share, f *figures) {
	b.Helper()
	content := fmt.Sprint("content-", c.turn)
	pause()
	begin := v.Remount(b, content)
	took := reads(b, v, slices.Concat(v.Points, v.Inside), content, begin)
	f.pod, f.all = append(f.pod, took...), append(f.all, took[len(took)-1])
	c.agent.Await(b, "no fault to be left", func(m map[string]float64) bool { return m[disconnected] == 0 })
}

// pause is a second on the average.
func pause() { <-time.After(time.Second/2 + rand.N(time.Second)) }

// heard is when the first Event told of a share's death.
func (c *coast) heard(b *testing.B, v *fakenode.Share) time.Time {
	b.Helper()
	patience := time.After(10 * time.Second)
	for {
		select {
		case e := <-c.events:
			for _, pod := range v.Pods {
				if e.pod == string(pod.UID) && e.reason == "DisconnectedFUSE" {
					return e.at
				}
			}
		case <-patience:
			b.Fatal("no Event reports it")
		}
	}
}

// reads waits until content is read of a share at each of the places, and returns how long after begin each did.
func reads(b *testing.B, v *fakenode.Share, places []string, content string, begin time.Time) []time.Duration {
	b.Helper()
	var took []time.Duration
	left := slices.Clone(places)
	for deadline := time.Now().Add(repairDeadline); len(left) > 0; time.Sleep(glanceAtPod) {
		left = slices.DeleteFunc(left, func(at string) bool {
			got, err := v.Read(at)
			if err != nil || got != content {
				return false
			}
			took = append(took, time.Since(begin))
			return true
		})
		if time.Now().After(deadline) {
			b.Fatalf("%q do not read %q", left, content)
		}
	}
	return took
}

// halt has the daemons of shares answer no more, and a process wait for each, until release. It returns when the agent
// has reported all.
func (c *coast) halt(b *testing.B, shares []*fakenode.Share) (release func()) {
	b.Helper()
	var users []*exec.Cmd
	for _, v := range shares {
		v.Stop(b)
		user := exec.Command("stat", v.Points[0]+"/data")
		must(b, user.Start())
		users = append(users, user)
	}
	c.agent.Await(b, "all hung mounts to be told of", func(m map[string]float64) bool { return m[hung] >= float64(len(shares)*podsPer) })
	return func() {
		for i, v := range shares {
			v.Continue(b)
			_ = users[i].Wait()
		}
		c.agent.Await(b, "no hung mount to be left", func(m map[string]float64) bool { return m[hung] == 0 })
	}
}
