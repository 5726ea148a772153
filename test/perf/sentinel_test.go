// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package perf

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kubediag.org/kubediag/test/fakenode"
)

const (
	nodePods  = 250
	nodeBinds = 6 * nodePods
	updates   = 1000                  // of volumes, in each run
	burst     = 500                   // pods with one ConfigMap
	rounds    = 5                     // of bursts
	gap       = 30 * time.Millisecond // between two updates, on the average
)

// node is a node with 250 pods of six subPaths each. A renewal of a volume of single breaks one bind, of six all.
type node struct {
	*fakenode.Node
	single, six []*fakenode.Volume

	agent *fakenode.Agent
	binds int
}

func newNode(b *testing.B) *node {
	b.Helper()
	n := &node{Node: fakenode.New(b), binds: nodeBinds}
	n.Build(b, "agent", "")
	n.single = n.AddPods(b, "single", nodePods/2, fakenode.Layout{Volumes: 6, Binds: 1})
	n.six = n.AddPods(b, "six", nodePods/2, fakenode.Layout{Volumes: 1, Binds: 6})
	return n
}

// BenchmarkSentinel measures how long a bind stays stale: from right before the rename with which the kubelet renews a
// volume until the bind is seen to be unmounted, by the sentinel of an agent with an API server, on Automatic. The
// comparison is a script that looks for deleted sources in the mount table and unmounts them once a second.
func BenchmarkSentinel(b *testing.B) {
	n := newNode(b)
	script := median(runScript(b, n.single[:scriptUpdates]))
	n.agent = n.LaunchAgent(b, "Automatic")
	n.await(b)
	for _, volumes := range [][]*fakenode.Volume{n.single, n.six} {
		b.Run(fmt.Sprint("binds=", len(volumes[0].Points)), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				took = append(took, n.oneByOne(b, volumes)...)
			}
			for unit, p := range map[string]int{"ms-p50": 50, "ms-p99": 99, "ms-max": 100} {
				b.ReportMetric(milliseconds(percentile(took, p)), unit)
			}
			b.ReportMetric(milliseconds(script), "ms-script-p50")
			b.ReportMetric(float64(script)/float64(median(took)), "ratio")
		})
	}
	shared := n.AddPods(b, "shared", burst, fakenode.Layout{Volumes: 1, Binds: 1})
	n.binds += burst
	n.await(b)
	b.Run("burst", func(b *testing.B) {
		var updated, unmounted []time.Duration
		for b.Loop() {
			for range rounds {
				u, m := n.atOnce(b, shared)
				updated, unmounted = append(updated, u), append(unmounted, m)
			}
		}
		b.ReportMetric(milliseconds(median(updated)), "ms-500-updates")
		b.ReportMetric(milliseconds(median(unmounted)), "ms-500-unmounts")
		b.ReportMetric(float64(median(unmounted))/float64(median(updated)), "ratio")
	})
}

// await waits until the sentinel has all binds and is told of each.
func (n *node) await(b *testing.B) {
	b.Helper()
	n.agent.Await(b, fmt.Sprint("the sentinel to watch ", n.binds, " binds"), func(m map[string]float64) bool {
		return m["kubediag_sentinel_watching"] == 1 && m["kubediag_sentinel_binds"] == float64(n.binds) && m["kubediag_sentinel_unwatched_binds"] == 0
	})
}

// oneByOne renews volumes one after the other, and gives for each how long it took until all its binds were unmounted.
func (n *node) oneByOne(b *testing.B, volumes []*fakenode.Volume) []time.Duration {
	b.Helper()
	w := newWatch(b)
	defer w.close()
	var took []time.Duration
	for len(took) < updates {
		round := volumes[:min(len(volumes), updates-len(took))]
		for _, v := range round {
			must(b, v.Prepare())
			time.Sleep(gap/2 + rand.N(gap)) // neither in step with the sentinel, nor upon the heels of the last one
			must(b, w.drain())
			begin := time.Now()
			must(b, v.Renew())
			awaitUnmounted(b, w, v)
			took = append(took, time.Since(begin))
		}
		n.rebind(b, round)
	}
	return took
}

// atOnce renews all volumes as fast as it can. It gives how long that took, and how long until all were unmounted.
func (n *node) atOnce(b *testing.B, volumes []*fakenode.Volume) (updated, unmounted time.Duration) {
	b.Helper()
	w := newWatch(b)
	defer w.close()
	for _, v := range volumes {
		must(b, v.Prepare())
	}
	must(b, w.drain())
	begin := time.Now()
	for _, v := range volumes {
		must(b, v.Renew())
	}
	updated = time.Since(begin)
	for _, v := range volumes {
		awaitUnmounted(b, w, v)
	}
	unmounted = time.Since(begin)
	n.rebind(b, volumes)
	return updated, unmounted
}

// rebind does what the kubelet does when the containers are started, and waits until the sentinel watches what is bound.
func (n *node) rebind(b *testing.B, volumes []*fakenode.Volume) {
	b.Helper()
	for _, v := range volumes {
		must(b, v.Bind())
	}
	n.agent.AwaitWatches(b, volumes)
	n.await(b)
}

// awaitUnmounted waits until a volume has no stale bind any more, ten seconds at most.
func awaitUnmounted(b *testing.B, w watch, v *fakenode.Volume) {
	b.Helper()
	if healed, err := w.unmounted(v.Points, 10*time.Second); err != nil || !healed {
		b.Fatalf("%q: still stale after ten seconds: %v", v.Points, err)
	}
}
