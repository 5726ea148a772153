// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build kernel

package probe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kubediag.org/kubediag/internal/linux/kerneltest"
	"kubediag.org/kubediag/internal/linux/mount"
	"kubediag.org/kubediag/internal/linux/mountinfo"
	"kubediag.org/kubediag/internal/linux/mountns"
	"kubediag.org/kubediag/internal/linux/probe"
	"kubediag.org/kubediag/internal/linux/subprocess"
	"kubediag.org/kubediag/internal/linux/sys"
	"kubediag.org/kubediag/internal/linux/sys/systest"
)

// askPoints asks about mounts in the test's own namespace.
func askPoints(t testing.TB, p *probe.Prober, points ...string) []probe.Answer {
	t.Helper()
	var targets []probe.Target
	for _, point := range points {
		targets = append(targets, probe.Target{Point: point, Bind: true})
	}
	answers, err := p.Ask(t.Context(), targets)
	must(t, err)
	return answers
}

// statesOf is the state of each answer.
func statesOf(answers []probe.Answer) []probe.State {
	var all []probe.State
	for _, a := range answers {
		all = append(all, a.State)
	}
	return all
}

// deadline is that of a pass in which something does not answer: half of it is
// time enough for a process to start and to ask, also where others keep all
// processors busy.
var deadline = kerneltest.Patience(4 * time.Second)

// slowProber is a prober that a machine which is busy, or emulated, has time to answer.
func slowProber() *probe.Prober {
	return &probe.Prober{Deadline: kerneltest.Patience(10 * time.Second)}
}

// TestTableOfBefore gives a prober the mount table of a time before the mount that it asks went, or another came. The answer is that of
// a prober that reads the table itself.
func TestTableOfBefore(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	t.Cleanup(func() { _ = systest.UnmountPath(other, true) })
	for name, change := range map[string]func() error{
		"as it was": func() error { return nil },
		"gone":      func() error { return systest.UnmountPath(dir, false) },
		"replaced": func() error {
			return errors.Join(systest.UnmountPath(dir, false),
				mount.Tmpfs(other, 1<<20), // it takes the number, which kernels before 6.8 use again
				mount.Tmpfs(dir, 1<<20))
		},
		"covered": func() error { return mount.Tmpfs(dir, 1<<20) },
	} {
		must(t, mount.Tmpfs(dir, 1<<20))
		before, err := mountns.Table(0)
		must(t, err)
		st, err := mount.Inspect(dir)
		must(t, err)
		must(t, change())
		reading, knowing := slowProber(), slowProber()
		asked := false
		knowing.Known = func(mountns.Namespace) *mountinfo.Table { asked = true; return before }
		targets := []probe.Target{{Point: dir, ID: st.ID}}
		want, err := reading.Ask(t.Context(), targets)
		must(t, err)
		got, err := knowing.Ask(t.Context(), targets)
		must(t, err)
		if !asked || got[0].State != want[0].State || (got[0].State == probe.Alive) != (name == "as it was") {
			t.Errorf("%s: %v, want %v", name, got[0], want[0])
		}
		for systest.UnmountPath(dir, false) == nil {
			continue
		}
	}
}

// TestNoOtherIsSent asks again where a thread of the last pass can neither end
// nor be ended.
func TestNoOtherIsSent(t *testing.T) {
	t.Parallel()
	stuck, stopped, fine := mountFUSE(t, "hang"), mountFUSE(t, ""), mountFUSE(t, "")
	stopped.signalServer("STOP")
	points := []string{stuck.dirs[0], stopped.dirs[0], fine.dirs[0]}
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: deadline, Runner: r}
	if got := statesOf(askPoints(t, p, points...)); !slices.Equal(got, []probe.State{probe.Hung, probe.Hung, probe.Alive}) {
		t.Fatalf("states %v", got)
	}
	kerneltest.Await(t, "only the request that was taken up waits", func() bool {
		return stuck.countWaiting(t, 0) == 1 && stopped.countWaiting(t, 0) == 0 && r.Lingering() == 1 && threadsLeft(p.Lost()) == "D"
	})
	stopped.signalServer("CONT")
	began := time.Now()
	answers := askPoints(t, p, points...)
	if got := statesOf(answers); !slices.Equal(got, []probe.State{probe.Hung, probe.Alive, probe.Alive}) {
		t.Errorf("states %v: one that goes on is to be asked, though the process is there yet that waited for it", got)
	}
	if took := time.Since(began); took > deadline/2 {
		t.Errorf("took %v: nobody needs to wait for what is known", took)
	}
	if !hasEvidence(answers[0], "still waits, and no other one is sent") || stuck.countWaiting(t, 0) != 1 {
		t.Errorf("evidence %q, %d requests wait", answers[0].Evidence, stuck.countWaiting(t, 0))
	}
	// The descriptors of the other file systems are not kept open with the process.
	kerneltest.Await(t, "the mount that goes on can be unmounted", func() bool { return systest.UnmountPath(points[1], false) == nil })
	kerneltest.Await(t, "only the process that hangs lingers", func() bool { return r.Lingering() == 1 })
	stuck.abortConnection(t, 0)
	awaitNoProcess(t, r)
	if got := statesOf(askPoints(t, p, points[0])); got[0] != probe.Disconnected {
		t.Errorf("state %v", got[0])
	}
}

// TestTooManyProcesses asks where no process can be had.
func TestTooManyProcesses(t *testing.T) {
	t.Parallel()
	stuck, fine := mountFUSE(t, "hang"), mountFUSE(t, "")
	r := &subprocess.Runner{MaxLingering: 1}
	p := &probe.Prober{Deadline: deadline, Runner: r}
	if got := askPoints(t, p, stuck.dirs[0]); got[0].State != probe.Hung || r.Lingering() != 1 {
		t.Fatalf("answer %+v, %d processes linger: the test shows nothing", got[0], r.Lingering())
	}
	answers := askPoints(t, p, fine.dirs[0])
	if answers[0].State != probe.NotProbed || !hasEvidence(answers[0], "as many processes") {
		t.Errorf("answer %+v", answers[0])
	}
	stuck.abortConnection(t, 0)
	awaitNoProcess(t, r)
}

// TestOneQuestionForEachConnection asks about many mounts of a file system that
// does not answer.
func TestOneQuestionForEachConnection(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "hang")
	points := []string{s.dirs[0]}
	for range 20 {
		point := t.TempDir()
		must(t, sys.BindMount(filepath.Join(s.dirs[0], "dir"), point))
		t.Cleanup(func() { systest.UnmountPath(point, true) })
		points = append(points, point)
	}
	r := &subprocess.Runner{}
	answers := askPoints(t, &probe.Prober{Deadline: deadline, Runner: r}, points...)
	for i, a := range answers {
		if a.State != probe.Hung || i > 0 && !hasEvidence(a, "not asked: the same file system does not answer at") {
			t.Errorf("answer %+v", a)
		}
	}
	if n := s.countWaiting(t, 0); n != 1 {
		t.Errorf("%d requests wait", n)
	}
	s.abortConnection(t, 0)
	awaitNoProcess(t, r)
}

// TestSilentOnesDelayNoPassByAllOfItsTime: a file system that did not answer in the last pass is waited for half as long, hangs all the same, and
// has all of the time again once it has answered.
func TestSilentOnesDelayNoPassByAllOfItsTime(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "")
	p := &probe.Prober{Deadline: deadline}
	ask := func() probe.Answer { return askOne(t, p, probe.Target{Point: s.dirs[0]}) }
	s.signalServer("STOP")
	first, second := ask(), ask()
	s.signalServer("CONT")
	answered := ask()
	s.signalServer("STOP")
	again := ask()
	s.signalServer("CONT")
	if got, want := statesOf([]probe.Answer{first, second, answered, again}), []probe.State{probe.Hung, probe.Hung, probe.Alive, probe.Hung}; !slices.Equal(got, want) {
		t.Fatalf("states %v, want %v", got, want)
	}
	if first.Took <= deadline*3/4 || second.Took >= first.Took || again.Took <= second.Took {
		t.Errorf("of %v they took %v, %v, and after an answer %v", deadline, first.Took, second.Took, again.Took)
	}
}

// TestSilenceServesLaterPasses: while requests wait for a server, no later pass waits for it, also if passes to other file systems come in
// between. If none waits, a later pass waits half as long. Once the server goes on it is asked at once.
func TestSilenceServesLaterPasses(t *testing.T) {
	t.Parallel()
	awaited, alone, fine := mountFUSE(t, ""), mountFUSE(t, ""), mountFUSE(t, "")
	for _, s := range []*fileServer{awaited, alone} {
		s.signalServer("STOP")
	}
	user := exec.Command("stat", filepath.Join(awaited.dirs[0], "dir"))
	must(t, user.Start())
	t.Cleanup(func() { _ = user.Wait() })
	t.Cleanup(func() { awaited.signalServer("CONT") })
	kerneltest.Await(t, "the user to wait", func() bool { return awaited.countWaiting(t, 0) == 1 })
	p := &probe.Prober{Deadline: deadline}
	ask := func(s *fileServer, want probe.State) time.Duration {
		t.Helper()
		began := time.Now()
		if a := askOne(t, p, probe.Target{Point: s.dirs[0]}); a.State != want {
			t.Errorf("state %v, want %v: %q", a.State, want, a.Evidence)
		}
		return time.Since(began)
	}
	ask(awaited, probe.Hung)
	ask(alone, probe.Hung)
	ask(fine, probe.Alive)
	if took := ask(awaited, probe.Hung); took > deadline/4 {
		t.Errorf("took %v of %v: a known answer takes no time", took, deadline)
	}
	if took := ask(alone, probe.Hung); took < deadline/4 || took > deadline*3/4 {
		t.Errorf("took %v, want half of %v: no request waits", took, deadline)
	}
	awaited.signalServer("CONT")
	kerneltest.Await(t, "no request to wait", func() bool { return awaited.countWaiting(t, 0) == 0 })
	ask(awaited, probe.Alive)
	alone.signalServer("CONT")
}

// TestSlowIsNotHung asks a file system that answers, but not everything in time:
// once it has answered, less than half the deadline is left.
func TestSlowIsNotHung(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, fmt.Sprint("late ", deadline*11/20))
	points := []string{s.dirs[0]}
	for range 3 {
		point := t.TempDir()
		must(t, sys.BindMount(filepath.Join(s.dirs[0], "dir"), point))
		t.Cleanup(func() { systest.UnmountPath(point, true) })
		points = append(points, point)
	}
	got := statesOf(askPoints(t, &probe.Prober{Deadline: deadline}, points...))
	if got[0] != probe.Alive || slices.Contains(got, probe.Hung) || got[3] != probe.NotProbed {
		t.Errorf("states %v", got)
	}
}

// TestMountChangesMeanwhile takes the mount away, or puts another there, while
// its file system is being asked.
func TestMountChangesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(dir string) error{
		"unmounted": func(dir string) error { return systest.UnmountPath(dir, true) },
		"replaced": func(dir string) error {
			return errors.Join(systest.UnmountPath(dir, true), sys.NewMount("none", dir, "tmpfs", ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := filepath.Join(t.TempDir(), "answer")
			s := mountFUSE(t, "when "+answer)
			t.Cleanup(func() { systest.UnmountPath(s.dirs[0], true) })
			ctx, asked := context.WithCancel(t.Context())
			defer asked()
			changed := s.whenAsked(ctx, func() error {
				return errors.Join(change(s.dirs[0]), os.WriteFile(answer, nil, 0o600))
			})
			answers := askPoints(t, &probe.Prober{Deadline: 30 * time.Second}, s.dirs[0])
			asked()
			must(t, <-changed)
			if a := answers[0]; a.State != probe.Gone || a.ID != (mount.ID{}) || a.Stat != (probe.Stat{}) || a.Bindable != probe.Unknown {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

// TestNoSuchMount asks about missing mounts.
func TestNoSuchMount(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "")
	state, err := mount.Inspect(s.dirs[0])
	must(t, err)
	below := filepath.Join(s.dirs[0], "dir")
	must(t, sys.BindMount(t.TempDir(), below))
	t.Cleanup(func() { systest.UnmountPath(below, true) })
	another := state.ID
	another.UniqueID++ // before 6.8 there is none, and the number decides
	another.MountInfoID++
	gone := kerneltest.Start(t, "space", t.TempDir())
	ns, err := mountns.Of(gone.PID)
	must(t, err)
	gone.End()
	for name, test := range map[string]struct {
		target probe.Target
		state  probe.State
		says   string
	}{
		"no mount":       {probe.Target{Point: t.TempDir()}, probe.Gone, "not mounted"},
		"nothing":        {probe.Target{Point: s.dirs[0] + "-not"}, probe.Gone, "not mounted"},
		"other mount":    {probe.Target{Point: s.dirs[0], ID: another}, probe.Gone, "another mount is there now"},
		"this mount":     {probe.Target{Point: s.dirs[0], ID: state.ID}, probe.Alive, ""},
		"below the FUSE": {probe.Target{Point: below}, probe.NotProbed, "path may block"},
		"gone namespace": {probe.Target{Namespace: ns, Point: "/"}, probe.Gone, "enter mount namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			answers, err := slowProber().Ask(t.Context(), []probe.Target{test.target})
			must(t, err)
			if a := answers[0]; a.State != test.state || test.says != "" && !hasEvidence(a, test.says) {
				t.Errorf("answer %+v", a)
			}
		})
	}
}

func TestBadTargets(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"", "etc", "/etc/", "/etc/../etc"} {
		_, err := (&probe.Prober{}).Ask(t.Context(), []probe.Target{{Point: "/"}, {Point: point}})
		if !errors.Is(err, sys.EINVAL) || !strings.Contains(err.Error(), fmt.Sprintf("target 1: point %q", point)) {
			t.Errorf("point %q: %v", point, err)
		}
	}
	answers, err := (&probe.Prober{}).Ask(t.Context(), nil)
	if len(answers) != 0 || err != nil {
		t.Errorf("no targets: %v, %v", answers, err)
	}
}

func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "hang")
	r := &subprocess.Runner{}
	p := &probe.Prober{Deadline: time.Minute, Runner: r}
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := s.whenAsked(ctx, func() error { cancel(); return nil })
	answers, err := p.Ask(ctx, []probe.Target{{Point: s.dirs[0]}})
	cancel()
	must(t, <-gaveUp)
	if !errors.Is(err, context.Canceled) || answers[0].State != probe.NotProbed {
		t.Errorf("%v, %+v", err, answers)
	}
	s.abortConnection(t, 0)
	awaitNoProcess(t, r)
}

// TestOtherNamespaces asks about mounts in another namespace, one of which does
// not answer, and then has that namespace end.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	s := mountFUSE(t, "hang", "")
	point := t.TempDir()
	other := kerneltest.Start(t, "space", point)
	ns, err := mountns.Of(other.PID)
	must(t, err)
	nameless := ns
	nameless.PID = 0
	var targets []probe.Target
	for _, space := range []mountns.Namespace{ns, nameless} {
		for _, at := range []string{point, s.dirs[1], s.dirs[0]} {
			targets = append(targets, probe.Target{Namespace: space, Point: at, Bind: true})
		}
	}
	r := &subprocess.Runner{}
	answers, err := (&probe.Prober{Deadline: deadline, Runner: r}).Ask(t.Context(), targets)
	must(t, err)
	want := []probe.State{probe.Alive, probe.Alive, probe.Hung, probe.Alive, probe.Alive, probe.Hung}
	if got := statesOf(answers); !slices.Equal(got, want) {
		t.Errorf("states %v", got)
	}
	if a := answers[0]; a.FSType != "tmpfs" || a.Bindable != probe.Yes {
		t.Errorf("answer %+v", a)
	}
	if r.Lingering() != 1 {
		t.Fatalf("%d processes linger: the test shows nothing", r.Lingering())
	}
	other.End()
	kerneltest.Await(t, "the namespace is gone", func() bool {
		all, _, err := mountns.Namespaces()
		must(t, err)
		return !slices.ContainsFunc(all, ns.Same)
	})
	s.abortConnection(t, 0)
	awaitNoProcess(t, r)
}

// watchPeak is the greatest number of threads that a child of this process has, and
// of children, until stop is called.
func watchPeak(t testing.TB) (stop func() (threads, children int)) {
	t.Helper()
	var most, many atomic.Int64
	ended := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			children := int64(0)
			for _, pid := range probeProcesses(t) {
				children++
				if n, err := sys.ProcThreads(pid); err == nil {
					most.Store(max(most.Load(), int64(n)))
				}
			}
			many.Store(max(many.Load(), children))
			select {
			case <-ended:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return func() (int, int) {
		close(ended)
		<-done
		return int(most.Load()), int(many.Load())
	}
}

// probeProcesses is the processes of jobs that this process has started. One that cannot
// end has lost its name already.
func probeProcesses(t testing.TB) []int {
	t.Helper()
	pids, err := sys.ProcNumbers("")
	must(t, err)
	return slices.DeleteFunc(pids, func(pid int) bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return len(line) > 0 && !strings.HasPrefix(string(line), "kubediag-job") || !strings.Contains(string(status), "\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n")
	})
}

// threadsLeft is the states of the threads of processes that were killed, but
// for those that have ended.
func threadsLeft(pids []int) (states string) {
	for _, pid := range pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)) // the pattern is a good one
		for _, thread := range threads {
			text, _ := os.ReadFile(thread) // it may be gone by now
			// After the name in parentheses, which may contain anything.
			_, state, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
			if state != "" && state[0] != 'Z' && state[0] != 'X' {
				states += state[:1]
			}
		}
	}
	return states
}
