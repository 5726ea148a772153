// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build api

package scale

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/test/program"
)

const (
	settling = 20 * time.Second
	atRest   = 20 * time.Second
	load     = 20 * time.Second
	perTick  = 20 * time.Millisecond // between two Diagnoses: 50 a second
	idle     = time.Minute
)

// BenchmarkManager measures memory and time of processors of the manager: at rest, and under 50 new Diagnoses a second. It measures
// how long a new Diagnosis waits for its node under that load, and without it, how long after a fault the Diagnosis of a Trigger is
// bound.
func BenchmarkManager(b *testing.B) {
	l := newLarge(b)
	l.fill(b)
	l.Build(b, "manager", "")
	pid := l.Launch(b, "manager").Process.Pid
	l.bound(b, "warm", nodeName(0)) // the caches are filled
	<-time.After(settling)
	for b.Loop() {
		before := used(b, pid)
		<-time.After(atRest)
		rest := used(b, pid)
		b.ReportMetric(rest.mib, "MiB-at-rest")
		b.ReportMetric(rest.since(before), "%core-at-rest")
		waits := l.burst(b, fmt.Sprint("new-", b.N, "-", time.Now().UnixNano()))
		busy := used(b, pid)
		b.ReportMetric(busy.mib, "MiB-under-load")
		b.ReportMetric(busy.since(rest), "%core-under-load")
		report(b, waits, "bind")
		report(b, l.faults(b), "fault-to-bound")
	}
}

func report(b *testing.B, all []time.Duration, what string) {
	b.Helper()
	slices.Sort(all)
	for name, p := range map[string]int{"p50": 50, "p99": 99} {
		b.ReportMetric(float64(all[min(len(all)*p/100, len(all)-1)])/float64(time.Millisecond), "ms-"+what+"-"+name)
	}
}

// bound makes a Diagnosis and waits for its node.
func (l *large) bound(b *testing.B, name, node string) {
	b.Helper()
	d := newDiagnosis(name, node)
	must(b, l.client.Create(b.Context(), d))
	for deadline := time.Now().Add(2 * time.Minute); d.Labels[v1.LabelNode] == ""; {
		must(b, l.client.Get(b.Context(), client.ObjectKeyFromObject(d), d))
		if time.Now().After(deadline) {
			b.Fatal("no manager binds a Diagnosis")
		}
		<-time.After(50 * time.Millisecond)
	}
}

// clock notes when things began, and how long it took until they were seen.
type clock struct {
	mu    sync.Mutex
	began map[string]time.Time
	took  []time.Duration
	left  chan struct{} // a token for each that was seen
}

func newClock(n int) *clock {
	return &clock{began: map[string]time.Time{}, left: make(chan struct{}, n)}
}

func (c *clock) begin(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began[name] = time.Now()
}

// seen notes the first time only.
func (c *clock) seen(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began, ok := c.began[name]; ok {
		c.took = append(c.took, time.Since(began))
		delete(c.began, name)
		c.left <- struct{}{}
	}
}

// wait waits until n were seen.
func (c *clock) wait(b *testing.B, n int) []time.Duration {
	b.Helper()
	deadline := time.After(2 * time.Minute)
	for i := range n {
		select {
		case <-c.left:
		case <-deadline:
			b.Fatalf("%d of %d are bound", i, n)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.took
}

// newest returns the version of all Diagnoses, from which a watch begins, as an informer's does. A watch from no version begins only
// when the API server's cache is as new as etcd, and fails when that takes seconds.
func (l *large) newest(b *testing.B) string {
	b.Helper()
	var now v1.DiagnosisList
	must(b, l.client.List(b.Context(), &now, client.Limit(1)))
	return now.ResourceVersion
}

// from has a watch begin at a version. The option serves one watch.
func from(version string) client.ListOption {
	return &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version}}
}

// follow reports every Diagnosis that is bound, until the benchmark ends.
func (l *large) follow(b *testing.B, bound func(d *v1.Diagnosis)) (stop func()) {
	b.Helper()
	watching, err := client.NewWithWatch(l.config, client.Options{Scheme: l.Scheme()})
	must(b, err)
	w, err := watching.Watch(b.Context(), &v1.DiagnosisList{}, client.InNamespace(namespace), from(l.newest(b)))
	must(b, err)
	go func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*v1.Diagnosis); ok && e.Type != watch.Deleted && d.Labels[v1.LabelNode] != "" {
				bound(d)
			}
		}
	}()
	return w.Stop
}

// burst makes 50 Diagnoses a second, and returns how long each waited for its node.
func (l *large) burst(b *testing.B, name string) []time.Duration {
	b.Helper()
	n := int(load / perTick)
	c := newClock(n)
	defer l.follow(b, func(d *v1.Diagnosis) { c.seen(d.Name) })()
	ticker := time.NewTicker(perTick)
	defer ticker.Stop()
	each(b, n, func(ctx context.Context, i int) error {
		<-ticker.C
		d := newDiagnosis(fmt.Sprint(name, "-", i), nodeName(i%*nodes))
		c.begin(d.Name)
		return l.client.Create(ctx, d)
	})
	return c.wait(b, n)
}

// faults makes faults that a Trigger matches, below its pace, and returns how long after each its Diagnosis was bound.
func (l *large) faults(b *testing.B) []time.Duration {
	b.Helper()
	n := min(*nodes, 150)
	tr := &v1.Trigger{ObjectMeta: metav1.ObjectMeta{GenerateName: "scale-"}}
	tr.Spec = v1.TriggerSpec{OperationSet: "subpath-remount-op-set", DiagnosesPerMinute: new(v1.MaxDiagnosesPerMinute), SourceTemplate: v1.SourceTemplate{
		MountFaultTemplate: &v1.MountFaultTemplate{Codes: []string{"HungMount"}},
	}}
	must(b, l.client.Create(b.Context(), tr))
	defer func() { must(b, l.client.Delete(b.Context(), tr)) }()
	c := newClock(n)
	defer l.follow(b, func(d *v1.Diagnosis) {
		if d.Annotations[v1.AnnotationMountFault] != "" {
			c.seen(d.Spec.NodeName)
		}
	})()
	ticker := time.NewTicker(8 * perTick)
	defer ticker.Stop()
	each(b, n, func(ctx context.Context, i int) error {
		<-ticker.C
		c.begin(nodeName(i))
		return l.client.Create(ctx, newFault(nodeName(i), fmt.Sprint("new-", time.Now().UnixNano()), "HungMount"))
	})
	took := c.wait(b, n)
	must(b, l.client.DeleteAllOf(b.Context(), &v1.MountFault{}, client.InNamespace(namespace)))
	return took
}

// BenchmarkWatchEvents measures how many watch events the API server sends for a Diagnosis that is made and bound, by the number
// of nodes whose agents watch as they do: by their label. It must not grow with them.
func BenchmarkWatchEvents(b *testing.B) {
	l := newLarge(b)
	l.addNodes(b)
	l.Build(b, "manager", "")
	l.Launch(b, "manager")
	for _, n := range []int{100, 1000, 5000} {
		if n > max(*nodes, 100) {
			continue
		}
		b.Run(fmt.Sprint("nodes=", n), func(b *testing.B) {
			agents := l.agents(b, n)
			defer agents.stop()
			l.bound(b, fmt.Sprint("warm-", n, "-", time.Now().UnixNano()), nodeName(0))
			const diagnoses = 50
			for b.Loop() {
				<-time.After(time.Second)
				sent, received := l.events(b), agents.events(b)
				for i := range diagnoses {
					l.bound(b, fmt.Sprint("watched-", n, "-", i, "-", time.Now().UnixNano()), nodeName(i))
				}
				<-time.After(time.Second)
				sent, received = l.events(b)-sent, agents.events(b)-received
				if received < diagnoses {
					b.Fatalf("agents received %d events of %d Diagnoses", received, diagnoses)
				}
				b.ReportMetric(sent/diagnoses, "events/Diagnosis")
				b.ReportMetric(float64(received)/diagnoses, "events-of-agents/Diagnosis")
			}
		})
	}
}

func (l *large) events(b *testing.B) float64 {
	b.Helper()
	return l.served(b, "apiserver_watch_events_total", `group="diagnosis.kubediag.org"`, `resource="diagnoses"`)
}

// agents watch as the agents of nodes do, and count what they receive.
type agents struct {
	watches  []watch.Interface
	received atomic.Int64
	failed   chan error // has room for one of each watch
}

func (l *large) agents(b *testing.B, n int) *agents {
	b.Helper()
	watching, err := client.NewWithWatch(l.config, client.Options{Scheme: l.Scheme()})
	must(b, err)
	a := &agents{watches: make([]watch.Interface, n), failed: make(chan error, n)}
	newest := l.newest(b)
	each(b, n, func(_ context.Context, i int) error {
		label := client.MatchingLabels{v1.LabelNode: v1.NodeLabelValue(nodeName(i))}
		w, err := watching.Watch(b.Context(), &v1.DiagnosisList{}, from(newest), label)
		if err != nil {
			return err
		}
		a.watches[i] = w
		go a.count(w)
		return nil
	})
	return a
}

// count counts the events of a watch until it ends or fails.
func (a *agents) count(w watch.Interface) {
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			a.failed <- apierrors.FromObject(e.Object)
			return
		}
		a.received.Add(1)
	}
}

// events returns how many events all have received. A watch that failed would make them too few.
func (a *agents) events(b *testing.B) int64 {
	b.Helper()
	select {
	case err := <-a.failed:
		b.Fatalf("watching as an agent: %v", err)
	default:
	}
	return a.received.Load()
}

func (a *agents) stop() {
	for _, w := range a.watches {
		w.Stop()
	}
}

// BenchmarkIdleAgentWrites measures the writes of one agent on a node on which nothing happens, from the API server's own
// counts.
func BenchmarkIdleAgentWrites(b *testing.B) {
	l := newLarge(b)
	l.Build(b, "agent", "")
	agent := l.LaunchAgent(b, "Observe")
	agent.Await(b, "the sentinel to watch", func(m map[string]float64) bool { return m["kubediag_sentinel_watching"] == 1 })
	<-time.After(settling)
	for b.Loop() {
		with := l.writes(b)
		program.End(agent.Cmd)
		b.ReportMetric((with-l.writes(b))*float64(time.Hour/idle), "writes/h")
	}
}

// writes counts the writes of all in a minute.
func (l *large) writes(b *testing.B) float64 {
	b.Helper()
	count := func() (sum float64) {
		for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			sum += l.served(b, "apiserver_request_total", `verb="`+verb+`"`)
		}
		return sum
	}
	before := count()
	<-time.After(idle)
	return count() - before
}
