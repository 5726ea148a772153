// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// probeLoad is mounts that answer and mounts that do not.
type probeLoad struct {
	fine           *fileServer // as many as connections
	stopped, stuck *fileServer // the server is stopped; it has taken the request up
	healthy        []string
	hung           []string
}

const (
	connections = 250
	binds       = 3 // of each, so that 1,000 mounts are healthy
)

// newLoad mounts 1,000 that answer, or fewer on an emulated machine, and so many of either kind that do not.
func newLoad(t testing.TB, stopped, stuck int) *probeLoad {
	t.Helper()
	l := &probeLoad{
		fine:    mountFUSE(t, make([]string, kerneltest.Fewer(connections))...),
		stopped: mountFUSE(t, make([]string, stopped)...),
		stuck:   mountFUSE(t, slices.Repeat([]string{"hang"}, stuck)...),
	}
	l.healthy = slices.Clone(l.fine.dirs)
	for _, dir := range l.fine.dirs {
		for range binds {
			point := t.TempDir()
			must(t, sys.BindMount(filepath.Join(dir, "dir"), point))
			t.Cleanup(func() { systest.UnmountPath(point, true) })
			l.healthy = append(l.healthy, point)
		}
	}
	l.stopped.signalServer("STOP")
	l.hung = slices.Concat(l.stopped.dirs, l.stuck.dirs)
	return l
}

// allPoints is all of them, the hung ones among the others.
func (l *probeLoad) allPoints() []string {
	points := slices.Clone(l.healthy)
	for i, dir := range l.hung {
		points = slices.Insert(points, min(i*20, len(points)), dir)
	}
	return points
}

// releaseAll has everything end that waits.
func (l *probeLoad) releaseAll(t testing.TB) {
	t.Helper()
	l.stopped.signalServer("CONT")
	for i := range l.stuck.dirs {
		l.stuck.abortConnection(t, i)
	}
}

func (l *probeLoad) checkAnswers(t testing.TB, points []string, answers []probe.Answer) {
	t.Helper()
	for i, a := range answers {
		want, bindable := probe.Alive, probe.Yes
		if slices.Contains(l.hung, points[i]) {
			want, bindable = probe.Hung, probe.Unknown
		}
		if a.Target != i || a.State != want || a.Bindable != bindable {
			t.Errorf("answer %+v, want %v", a, want)
		}
	}
}

// TestManyMounts asks 1,000 mounts that answer and 50 that do not.
func TestManyMounts(t *testing.T) {
	l := newLoad(t, 25, 25)
	points := l.allPoints()
	before := tableText(t, points[0])
	deadline := kerneltest.Patience(6 * time.Second) // half of it is for all of them to be asked in
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: deadline, Runner: r}
	for pass := range 2 {
		stop := watchPeak(t)
		began := time.Now()
		answers := askPoints(t, p, points...)
		took := time.Since(began)
		threads, children := stop()
		t.Logf("pass %d took %v, at most %d threads in %d processes", pass, took, threads, children)
		l.checkAnswers(t, points, answers)
		if took > 2*deadline+kerneltest.Patience(20*time.Second) {
			t.Errorf("pass %d took %v", pass, took)
		}
		if threads == 0 || threads > 16+256+40 || children > pass+2 {
			t.Errorf("%d threads, %d processes", threads, children)
		}
	}
	for i := range l.stuck.dirs {
		if n := l.stuck.countWaiting(t, i); n != 1 {
			t.Errorf("%d requests wait", n)
		}
	}
	if tableText(t, points[0]) != before {
		t.Error("the mount table is not as before")
	}
	l.releaseAll(t)
	awaitNoProcess(t, r)
	if left := probeProcesses(t); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
	if got := askPoints(t, p, l.stopped.dirs[0], l.stuck.dirs[0]); got[0].State != probe.Alive || got[1].State != probe.Disconnected {
		t.Errorf("states %v", statesOf(got))
	}
}

// TestMoreHangThanThreads asks more mounts that do not answer than there may be
// threads for, and one that does.
func TestMoreHangThanThreads(t *testing.T) {
	t.Parallel()
	stopped := mountFUSE(t, make([]string, 288)...)
	fine := mountFUSE(t, "")
	stopped.signalServer("STOP")
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: kerneltest.Patience(6 * time.Second), Runner: r}
	points := append(slices.Clone(stopped.dirs), fine.dirs[0])
	const threads = 16 + 256
	var without, waited int
	for _, a := range askPoints(t, p, points...) {
		switch {
		case a.State == probe.NotProbed && hasEvidence(a, "no thread left"):
			without++
		case a.State == probe.Hung, a.State == probe.NotProbed && hasEvidence(a, "too short for a verdict"):
			waited++
		}
	}
	if without != len(points)-threads || waited != threads {
		t.Errorf("no thread was left for %d of %d, and %d were waited for", without, len(points), waited)
	}
	// A mount that has not been asked comes before most others next time.
	if got := statesOf(askPoints(t, p, points...)); got[len(got)-1] != probe.Alive || slices.Contains(got[:len(got)-1], probe.Alive) {
		t.Errorf("states %v, want the last alone to be alive", got)
	}
	stopped.signalServer("CONT")
	awaitNoProcess(t, r)
}

// loops are the loops of today's scripts, over the mounts in standard input.
var loops = map[string]string{
	"loop":  `while read -r m; do timeout %v stat "$m" >/dev/null 2>&1 </dev/null; done; true`,
	"xargs": `xargs -P 16 -I M timeout %v stat M >/dev/null 2>&1; true`,
}

// BenchmarkPass compares a pass over 1,000 healthy and 50 hung mounts with a loop that runs stat under timeout for
// each, one after another and 16 at once, in the same run on the same mounts. All give a mount the same time to answer.
// The servers are stopped and have not taken the requests up: else timeout could not kill its child, would wait for it,
// and the loops would never end.
func BenchmarkPass(b *testing.B) {
	const deadline = 2 * time.Second
	l := newLoad(b, 50, 0)
	p := &probe.Prober{Deadline: deadline}
	points := l.allPoints()
	timed := func(act func()) time.Duration {
		began := time.Now()
		act()
		return time.Since(began)
	}
	for range b.N {
		var answers []probe.Answer
		took := timed(func() { answers = askPoints(b, p, points...) })
		l.checkAnswers(b, points, answers)
		b.ReportMetric(took.Seconds(), "s-pass")
		for name, script := range loops {
			other := timed(func() { shell(b, fmt.Sprintf(script, deadline.Seconds()), points) })
			b.ReportMetric(other.Seconds(), "s-"+name)
			b.ReportMetric(other.Seconds()/took.Seconds(), "x-"+name)
		}
		// How long the healthy ones take by themselves.
		took = timed(func() { askPoints(b, p, l.healthy...) })
		b.ReportMetric(took.Seconds()*1000, "ms-healthy-pass")
		other := timed(func() { shell(b, fmt.Sprintf(loops["xargs"], deadline.Seconds()), l.healthy) })
		b.ReportMetric(other.Seconds()/took.Seconds(), "x-healthy-xargs")
	}
	l.releaseAll(b)
}

func shell(b *testing.B, script string, points []string) {
	b.Helper()
	cmd := exec.Command("sh", "-c", script)
	cmd.Stdin = strings.NewReader(strings.Join(points, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

var hungFlag = flag.Int("hung", 200, "how many file systems of one pod, and of one driver, hang")

// TestHungOnesTakeNoRoom has file systems of one pod hang, one more at every pass, and then those of a driver all at
// once.
func TestHungOnesTakeNoRoom(t *testing.T) {
	t.Parallel()
	single, many, driver := max(kerneltest.Fewer(8), 6), *hungFlag, *hungFlag
	fine := mountFUSE(t, "", "")
	stuck := mountFUSE(t, slices.Repeat([]string{"hang"}, many)...)
	lost := mountFUSE(t, make([]string, driver)...)
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: max(2*time.Second, kerneltest.Patience(time.Second)), Runner: r}
	healthy := []probe.Target{{Point: fine.dirs[0], Owner: "pod"}, {Point: fine.dirs[1], Owner: "attacker"}}
	check := func(what string, others ...probe.Target) {
		t.Helper()
		began := time.Now()
		answers, err := p.Ask(t.Context(), slices.Concat(others, healthy))
		must(t, err)
		for _, a := range answers[len(others):] {
			if a.State != probe.Alive {
				t.Fatalf("%s: %d processes linger, answer %+v", what, r.Lingering(), a)
			}
		}
		if took := time.Since(began); took > 2*p.Deadline+kerneltest.Patience(20*time.Second) {
			t.Errorf("%s: the pass took %v", what, took)
		}
	}
	check("at first")
	targets := make([]probe.Target, many)
	for i, dir := range stuck.dirs {
		targets[i] = probe.Target{Point: dir, Owner: "attacker"}
	}
	for n := range single {
		check("one after another", targets[n])
	}
	if n := r.Lingering(); n < single/2 {
		t.Fatalf("%d processes linger: the test shows nothing", n)
	}
	for range 3 {
		check("all that the pod has", targets...)
	}
	waiting := 0
	for i := range stuck.dirs {
		waiting += stuck.countWaiting(t, i)
	}
	if waiting > 100 {
		t.Errorf("%d threads wait for the file systems of one pod", waiting)
	}
	p.Deadline = deadline
	var all []probe.Target
	for i, dir := range lost.dirs {
		all = append(all, probe.Target{Point: dir, Owner: []string{"a", "b", "c", "d"}[i%4]})
	}
	check("the driver is well", all...)
	lost.signalServer("STOP")
	for range 3 {
		check("the driver is lost", all...)
	}
	lost.signalServer("CONT")
	for i := range stuck.dirs {
		stuck.abortConnection(t, i)
	}
	awaitNoProcess(t, r)
}
